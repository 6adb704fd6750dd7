"""Handle sequences of plain layers: recognition, amount of work, and derivatives in all lanes.

The amount of work decides whether a CPU computes lanes together. The call of a small convolution takes longer than its
computation, so all lanes go into one call. A large convolution uses the whole processor. The convolution of many lanes,
whose filters differ, is then slower than one convolution after another.
"""

import copy
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

HARMLESS = {"__init__", "__repr__", "extra_repr", "__annotate__", "__annotate_func__"}
"""The names that a subclass may define and still compute the same as its parent."""


def members(sequence: nn.Module) -> list[nn.Module]:
    """Return the modules of a sequence; a module that is used twice is listed twice."""
    return [module for module in sequence._modules.values() if module is not None]  # pyright: ignore[reportPrivateUsage]


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module; raise a ValueError with the remedy if it cannot be copied."""
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise ValueError(f"{type(module).__name__} has no parameters yet: call it once with an example")
    try:
        return copy.deepcopy(module)
    except Exception as error:  # whatever the module's own code raises
        raise ValueError(
            f"{type(module).__name__} cannot be copied ({str(error).partition('  ')[0]}): keep only parameters, "
            "buffers and plain values as attributes, and no tensor computed from parameters, as the old weight_norm, "
            "spectral_norm and prune do: use torch.nn.utils.parametrizations"
        ) from error


def is_same(module: nn.Module, made: nn.Module) -> bool:
    """Return whether ``made`` has the layers and the numbers of ``module``: a module may copy itself as another one."""
    values, made_values = ([*each.named_parameters(), *each.named_buffers()] for each in (module, made))
    return list(_outline(module)) == list(_outline(made)) and all(
        (name, type(value)) == (other, type(kept))
        and torch.equal(value.detach().to(kept).nan_to_num(), kept.nan_to_num())
        for (name, value), (other, kept) in zip(values, made_values, strict=True)
    )


def _outline(module: nn.Module) -> Iterator[Any]:
    """Yield, for each layer, its kind, its settings, its number of parameters, its replaced calls and its hooks."""
    for name, layer in module.named_modules(remove_duplicate=False):
        yield name, type(layer)
        yield {key: len(cast(Any, value)) if isinstance(value, dict) else 0 for key, value in vars(layer).items()}


HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Return whether anything is called before or after the module or its gradient: its hooks, or global ones."""
    everywhere = torch.nn.modules.module
    return any(getattr(everywhere, f"_global_{name}") or getattr(module, f"_{name}") for name in HOOKS)


def has_unusual_values(module: nn.Module) -> bool:
    """Return whether a parameter or buffer of a layer is of a subclass, which may compute something else."""
    values: list[object] = [*vars(module)["_parameters"].values(), *vars(module)["_buffers"].values()]
    return any(value is not None and type(value) not in (nn.Parameter, Tensor) for value in values)


# What layers call. Methods are on torch.Tensor, functions in torch.nn.functional or torch.
CALLED = (
    *("flatten", "unflatten", "view", "reshape", "pixel_unshuffle", "cat", "chunk", "pad", "dropout"),
    *("relu", "leaky_relu", "tanh", "sigmoid", "silu", "gelu", "softplus", "maximum", "minimum", "abs", "norm"),
    *("linear", "conv2d", "batch_norm", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "add", "mul"),
)
METHODS = ("forward", "_conv_forward", "_check_input_dim", "rescale", "__call__", "_call_impl", "__getattr__")
_ORIGINAL = {
    (owner, name): getattr(owner, name)
    for name in CALLED
    for owner in (functional, torch, Tensor)
    if hasattr(owner, name)
}


def patched() -> str | None:
    """Return the name of a function or method of torch that was replaced and that layers call, or None."""
    for (owner, name), value in _ORIGINAL.items():
        if getattr(owner, name) is not value or _foreign(value):
            return name
    return is_patched(nn.Module)


def _foreign(function: object) -> bool:
    """Return whether a Python function is not from a file of torch."""
    return isinstance(function, FunctionType) and not function.__code__.co_filename.startswith(_TORCH)


_TORCH = os.path.dirname(torch.__file__) + os.sep


def is_patched(kind: type[nn.Module]) -> str | None:
    """Return the name of a method that a class of layers did not get from its own file, or None."""
    for each in kind.__mro__:
        file = getattr(sys.modules.get(each.__module__), "__file__", None)
        for name in METHODS:
            method = vars(each).get(name)
            if method is None or each is object:
                continue
            if not isinstance(method, FunctionType) or not _same_file(method.__code__.co_filename, file):
                return f"{each.__name__}.{name}"
    return None


def _same_file(code: str, module: str | None) -> bool:
    return module is not None and os.path.splitext(code)[0] == os.path.splitext(module)[0]


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether the module certainly computes what its kind computes, without hooks or replaced methods."""
    if not isinstance(module, kind) or is_patched(kind) or patched():
        return False
    replaced = any(callable(value) and hasattr(type(module), name) for name, value in vars(module).items())
    changed = replaced or has_hooks(module) or has_unusual_values(module)
    return not (changed or _replaced_by_subclass(type(module), kind))


@cache
def _replaced_by_subclass(subclass: type[nn.Module], kind: type[nn.Module]) -> bool:
    """Return whether a class below the kind defines anything that could change the computation."""
    between = subclass.__mro__[: subclass.__mro__.index(kind)]
    changes = {name for each in between for name, value in vars(each).items() if _counts(name, value)}
    return any(hasattr(kind, name) or name in ("weight", "bias") for name in changes - HARMLESS)


def _counts(name: str, value: object) -> bool:
    """Return whether an attribute matters, unlike Python's notes about a class, such as its docstring."""
    return callable(value) or not name.startswith("__")


BUSY = 500_000
"""The number of products per example above which a lane keeps a processor busy (``benchmarks/networks.py``)."""


def convolution_products(module: nn.Module, run: Callable[[], object]) -> int:
    """Return the number of products in convolutions while ``run`` calls the module."""
    counts: list[int] = []

    def count(layer: nn.Module, args: Any, output: Tensor) -> None:
        counts.append(output.numel() * cast(nn.Conv2d, layer).weight[0].numel())

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    if not layers:
        return 0
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return sum(counts)


ELEMENTWISE = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh)

aten: Any = torch.ops.aten


Passed = list[Tensor]
"""A forward pass: the input of each layer, then the outputs."""


class Chain:
    """Linear layers, flattening and elementwise functions; ``values`` are all lanes' parameters, in order."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        counts = [1 + has_bias(layer) if isinstance(layer, nn.Linear) else 0 for layer in layers]
        starts = [sum(counts[:number]) for number in range(len(counts))]
        self._params = [slice(start, start + count) for start, count in zip(starts, counts, strict=True)]
        self._first = next(number for number, count in enumerate(counts) if count)

    def forward(self, values: Sequence[Tensor], x: Tensor) -> Passed:
        """Return the input of each layer, then the outputs."""
        passed = [x]
        for layer, params in zip(self._layers, self._params, strict=True):
            hidden = passed[-1]
            if isinstance(layer, nn.Linear):
                weight, *bias = values[params]
                moved = torch.bmm(_rows(hidden), weight.mT).view(*hidden.shape[:-1], -1)
                lead = (len(hidden), *(1,) * (hidden.ndim - 2), -1)
                hidden = moved + bias[0].view(lead) if bias else moved
            else:
                hidden = hidden.flatten(2) if isinstance(layer, nn.Flatten) else layer(hidden)
            passed.append(hidden)
        return passed

    def input_slope(self, values: Sequence[Tensor], passed: Passed, slope: Tensor) -> Tensor:
        """Return the gradient in the inputs from the gradient in the outputs."""
        for number in reversed(range(len(self._layers))):
            slope = self._slope_before(number, values, passed, slope)
        return slope

    def write_gradient(self, values: Sequence[Tensor], passed: Passed, slope: Tensor, out: Sequence[Tensor]) -> None:
        """Write the gradient in each parameter, from the gradient in the outputs."""
        for number in reversed(range(self._first, len(self._layers))):
            layer, params, before = self._layers[number], self._params[number], passed[number]
            if isinstance(layer, nn.Linear):
                _write_slopes(slope, before, out[params])
            if number > self._first:
                slope = self._slope_before(number, values, passed, slope)

    def _slope_before(self, number: int, values: Sequence[Tensor], passed: Passed, slope: Tensor) -> Tensor:
        """Return the slope at a layer's input from the slope at its output."""
        layer, params, before = self._layers[number], self._params[number], passed[number]
        if isinstance(layer, nn.Linear):
            return torch.bmm(_rows(slope), values[params.start]).view(before.shape)
        return _elementwise(layer, slope, before, passed[number + 1])


def has_bias(layer: nn.Linear) -> bool:
    """Return whether a linear layer has a bias."""
    return layer.bias is not None  # pyright: ignore[reportUnnecessaryComparison]


def _write_slopes(slope: Tensor, before: Tensor, out: Sequence[Tensor]) -> None:
    """Write the slopes at the weights and the bias of a linear layer."""
    weight, *bias = out
    torch.bmm(_rows(slope).mT, _rows(before), out=weight)
    if bias:
        torch.sum(slope, dim=tuple(range(1, slope.ndim - 1)), out=bias[0])


def _rows(hidden: Tensor) -> Tensor:
    return hidden.flatten(1, -2)


def _elementwise(layer: nn.Module, slope: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return the slope before a layer without parameters, which flattens or acts element by element."""
    match layer:
        case nn.Flatten():
            return slope.reshape(before.shape)
        case nn.Identity():
            return slope
        case nn.ReLU():
            return aten.threshold_backward(slope, after, 0)
        case nn.LeakyReLU():
            return aten.leaky_relu_backward(slope, before, layer.negative_slope, False)
        case nn.ELU():
            return aten.elu_backward(slope, layer.alpha, 1, 1, False, before)
        case nn.GELU():
            return aten.gelu_backward(slope, before, approximate=layer.approximate)
        case nn.SiLU():
            return aten.silu_backward(slope, before)
        case nn.Softplus():
            return aten.softplus_backward(slope, before, layer.beta, layer.threshold)
        case nn.Sigmoid():
            return aten.sigmoid_backward(slope, after)
        case nn.Tanh():
            return aten.tanh_backward(slope, after)
        case _:
            raise TypeError(f"{type(layer).__name__} has no derivative here: list it among ELEMENTWISE with one")
