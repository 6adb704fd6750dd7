"""Use the output of a named layer as the space in which an objective moves.

With the ball at a layer's output ``h(x)``, the robust loss is ``sup over d of loss(h(x) + d) - gamma ||d||^p``. By the
envelope theorem its gradient in the parameters is taken at a fixed d, so layers before the named one learn as well.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class _ReachedError(Exception):
    """The named layer has returned its output, so later layers are not needed."""


def output_of(module: nn.Module, layer: str, run: Callable[[], Tensor]) -> Tensor:
    """Return the output of a layer while ``run`` calls the module, without computing later layers."""
    outputs: list[Any] = []

    def stop(_: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output)
        raise _ReachedError

    hook = find_layer(module, layer).register_forward_hook(stop)
    try:
        run()
    except _ReachedError:
        pass
    finally:
        hook.remove()
    if not outputs:
        raise ValueError(f"space={layer!r}: the model never calls this layer; it has: {_names(module)}")
    if not isinstance(outputs[0], Tensor) or not outputs[0].is_floating_point():
        kind = f"one of type {outputs[0].dtype}" if isinstance(outputs[0], Tensor) else f"a {type(outputs[0]).__name__}"
        raise ValueError(
            f"space={layer!r}: this layer does not give a floating-point tensor, but {kind}: name another, "
            f"or put torch.nn.Identity() where the ball is to be and name that; the model has: {_names(module)}"
        )
    return outputs[0]


@contextmanager
def changed_output(module: nn.Module, layer: str, change: Callable[[Tensor], Tensor]) -> Generator[None, None, None]:
    """Change the layer's output during the block; the layer must be called once."""
    calls: list[int] = []

    def hook(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        calls.append(1)
        return change(output)

    handle = find_layer(module, layer).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
    if len(calls) != 1:
        raise ValueError(
            f"space={layer!r}: the model calls this layer {len(calls)} times; name one that is called once"
        )


class Head(nn.Module):
    """The part of a model after a layer, whose output is given and not computed."""

    def __init__(self, module: nn.Module, layer: str, x: Tensor) -> None:
        super().__init__()
        self.module, self._layer = module, layer
        self._shape, self._dtype = x.shape[1:], x.dtype

    def forward(self, features: Tensor, x: Tensor | None = None) -> Tensor:
        """Return the model's outputs for these features."""
        layer = find_layer(self.module, self._layer)
        layer.forward = lambda *_, **__: features
        if x is None:
            x = torch.zeros(len(features), *self._shape, dtype=self._dtype, device=features.device)
        try:
            return self.module(x)
        finally:
            del layer.forward


class Beside(nn.Module):
    """A model's function of a layer's output and of its fixed inputs: examples are both, flat and side by side."""

    def __init__(self, head: Head, features: Tensor, x: Tensor) -> None:
        super().__init__()
        self.head = head
        self._shapes, self._dtype = (features.shape[1:], x.shape[1:]), x.dtype

    @property
    def features(self) -> int:
        """The number of numbers in the layer's output for one example."""
        return self._shapes[0].numel()

    @staticmethod
    def join(features: Tensor, x: Tensor) -> Tensor:
        """Return the features and the inputs side by side."""
        return torch.cat([features.flatten(1), x.flatten(1).to(features)], dim=1)

    def forward(self, both: Tensor) -> Tensor:
        """Return the model's outputs for features and inputs side by side."""
        sizes = [shape.numel() for shape in self._shapes]
        features, x = (
            piece.unflatten(1, shape) for piece, shape in zip(both.split(sizes, 1), self._shapes, strict=True)
        )
        x = x.detach() if self._dtype.is_floating_point else x.detach().round()
        return self.head(features, x.to(self._dtype))


def after(module: nn.Module, layer: str, x: Tensor) -> nn.Module:
    """Return the model after a layer's output; for a plain sequence, only its later layers."""
    names = list(module._modules)  # pyright: ignore[reportPrivateUsage]
    if type(module).forward is nn.Sequential.forward and layer in names:
        rest = [module.get_submodule(name) for name in names[names.index(layer) + 1 :]]
        return nn.Sequential(*rest)
    return Head(module, layer, x)


def find_layer(module: nn.Module, layer: str) -> nn.Module:
    """Return the layer of a model by its name; raise ValueError with all layers if there is none."""
    layers = dict(module.named_modules())
    if layer not in layers or layer == "":
        raise ValueError(f"space={layer!r} is not a layer of the model, which has: {_names(module)}")
    return layers[layer]


def _names(module: nn.Module) -> str:
    names = [name for name, _ in module.named_modules() if name]
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") or "none"
