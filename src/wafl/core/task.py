"""A model and its loss as pure functions of a flat parameter vector, batched over lanes.

Shapes: ``params [L, P]``, ``x [L, B, ...]`` (a tensor or :class:`wafl.core.inputs.Inputs`), ``y [L, B]`` (or
targets ``[L, B, k]``), outputs ``[L, B, C]``, losses ``[L, B]``. A lane is one client's copy of the
parameters in one run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from wafl.core.inputs import Inputs, dense, shared
from wafl.core.losses import OutputLoss, output_loss

Loss = str | OutputLoss | Callable[[Tensor, Tensor], Tensor]


class Task:
    """Any ``nn.Module`` without batch statistics or hidden randomness, through ``torch.func``."""

    def __init__(self, module: nn.Module, loss: OutputLoss) -> None:
        self.module = module
        self.loss = loss
        self._shapes = {name: value.shape for name, value in _trainable(module).items()}
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        # A layer used twice in the model is one module: torch would restore its parameters twice, and wrongly.
        everywhere = [id(part) for _, part in module.named_modules(remove_duplicate=False)]
        self._tie = len(everywhere) == len(set(everywhere))
        self.num_params = sum(self._sizes)

    def flatten(self, params: Mapping[str, Tensor]) -> Tensor:
        """Named parameters as one vector ``[P]``."""
        missing = self._shapes.keys() ^ params.keys()
        if missing:
            raise ValueError(f"parameter names differ from the model's: {', '.join(sorted(missing))}")
        for name, shape in self._shapes.items():
            if params[name].shape != shape:
                raise ValueError(
                    f"parameter {name} has shape {tuple(params[name].shape)}, but the model needs {tuple(shape)}"
                )
        return torch.cat([params[name].detach().reshape(-1) for name in self._shapes])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """One vector ``[P]`` as named parameters."""
        parts = flat.split(self._sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def initial(self) -> Tensor:
        return self.flatten(_trainable(self.module))

    def frozen_digest(self) -> bytes:
        """What the outputs depend on in addition to the trainable parameters: frozen ones and buffers."""
        state = self.module.state_dict()
        fixed = [value for name, value in state.items() if name not in self._shapes]
        return b"".join(value.detach().cpu().contiguous().numpy().tobytes() for value in fixed)

    def outputs(self, params: Tensor, x: Tensor | Inputs) -> Tensor:
        return vmap(self._call)(params, dense(x))

    def losses(self, params: Tensor, x: Tensor | Inputs, y: Tensor) -> Tensor:
        return self.loss.value(self.outputs(params, x), y)

    def gradient(self, params: Tensor, x: Tensor | Inputs, y: Tensor, weight: Tensor) -> Tensor:
        """The gradient ``[L, P]`` of ``sum_b weight_b loss_b`` in the parameters."""

        def total(flat: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return (weight * self.loss.value(self._call(flat, x), y)).sum()

        return vmap(torch.func.grad(total))(params, dense(x), y, weight)

    def input_gradient(self, params: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses ``[L, B]`` and their gradients in the inputs ``[L, B, ...]``."""

        def total(x: Tensor, flat: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            losses = self.loss.value(self._call(flat, x), y)
            return losses.sum(), losses

        gradients, (_, losses) = vmap(grad_and_value(total, has_aux=True))(x, params, y)
        return losses, gradients

    def linear(self, params: Tensor) -> tuple[Tensor, Tensor] | None:
        """``(W [L, C, D], b [L, C])`` if outputs are ``W x + b`` of the flattened input, otherwise None."""
        return None

    def curvature(self, params: Tensor, norm: float = 2) -> Tensor | None:
        """L_zz ``[L]``: the Lipschitz constant of the loss's input gradient; None if it is unknown."""
        return None

    def _call(self, flat: Tensor, x: Tensor) -> Tensor:
        return functional_call(self.module, self.unflatten(flat), (x,), tie_weights=self._tie)


class LinearTask(Task):
    """Outputs ``W x + b``: every derivative in closed form, without autograd."""

    def __init__(self, module: nn.Module, layer: nn.Linear, loss: OutputLoss) -> None:
        super().__init__(module, loss)
        self._classes, self._features = layer.out_features, layer.in_features
        self._has_bias = layer.bias is not None  # pyright: ignore[reportUnnecessaryComparison]

    def linear(self, params: Tensor) -> tuple[Tensor, Tensor]:
        split = self._classes * self._features
        weight = params[:, :split].view(-1, self._classes, self._features)
        return weight, params[:, split:] if self._has_bias else params.new_zeros(len(params), self._classes)

    def outputs(self, params: Tensor, x: Tensor | Inputs) -> Tensor:
        inputs = shared(x)
        if inputs.outputs is not None:
            return inputs.outputs.mT
        weight, bias = self.linear(params)
        base = inputs.base.flatten(2)
        # All lanes that share a batch go into one product: [G, R C, D] x [G, D, B].
        products = torch.bmm(weight.reshape(len(base), -1, self._features), base.mT)
        return (products.view(inputs.lanes, self._classes, -1) + bias[..., None]).mT

    def gradient(self, params: Tensor, x: Tensor | Inputs, y: Tensor, weight: Tensor) -> Tensor:
        inputs = shared(x)
        residual = self.loss.gradient(self.outputs(params, inputs), y).mT * weight[:, None]
        base = inputs.base.flatten(2)
        slope = torch.bmm(residual.reshape(len(base), -1, base.shape[1]), base).view(inputs.lanes, self._classes, -1)
        if inputs.shift is not None and inputs.weight is not None:
            slope.baddbmm_(torch.bmm(residual, inputs.shift.mT), inputs.weight)
        parts = [slope.flatten(1)]
        if self._has_bias:
            parts.append(residual.sum(-1))
        return torch.cat(parts, dim=1)

    def input_gradient(self, params: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.outputs(params, x)
        gradients = torch.bmm(self.loss.gradient(outputs, y), self.linear(params)[0])
        return self.loss.value(outputs, y), gradients.view_as(x)

    def curvature(self, params: Tensor, norm: float = 2) -> Tensor | None:
        return self.loss.curvature(self.linear(params)[0], norm)


@dataclass(frozen=True)
class Problem:
    """What an adversary may ask of the models, one per lane."""

    task: Task
    params: Tensor

    def loss(self, x: Tensor | Inputs, y: Tensor) -> Tensor:
        return self.task.losses(self.params, x, y)

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss_and_gradient(x, y)[1]

    def loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.task.input_gradient(self.params, x, y)

    @property
    def output_loss(self) -> OutputLoss:
        return self.task.loss

    @cached_property
    def linear(self) -> tuple[Tensor, Tensor] | None:
        return self.task.linear(self.params)

    @cached_property
    def curvature(self) -> Tensor | None:
        return self.task.curvature(self.params)


def make_task(model: nn.Module, loss: Loss = "cross_entropy", device: torch.device | str = "cpu") -> Task:
    """The task of a model, which uses its linear structure if it has one."""
    _refuse_hidden_state(model)
    module = copy.deepcopy(model).to(device)
    if not _trainable(module):
        raise ValueError(f"{type(model).__name__} has no trainable parameters")
    layer = _only_linear_layer(module)
    return LinearTask(module, layer, output_loss(loss)) if layer is not None else Task(module, output_loss(loss))


def _trainable(module: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def _refuse_hidden_state(model: nn.Module) -> None:
    for name, layer in model.named_modules():
        where = f"{type(layer).__name__} at {name!r}" if name else type(layer).__name__
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:  # pyright: ignore[reportPrivateUsage]
            raise ValueError(
                f"{where} keeps batch statistics, which mix examples and differ between clients: "
                "use torch.nn.GroupNorm or torch.nn.LayerNorm instead"
            )
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            raise ValueError(
                f"{where} mixes the examples of a batch: use torch.nn.GroupNorm or torch.nn.LayerNorm instead"
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:  # pyright: ignore[reportPrivateUsage]
            raise ValueError(
                f"{where} draws from torch's global generator, so no run could be repeated: "
                "set p=0 or use weight_decay instead"
            )


def _only_linear_layer(module: nn.Module) -> nn.Linear | None:
    """The layer of a model that is certainly ``W x + b``: a plain Linear, after nothing but flattening."""
    layers = members(module) if is_plain(module, nn.Sequential) else [module]
    *before, last = layers or [module]
    flattens = all(
        is_plain(layer, nn.Identity)
        or (isinstance(layer, nn.Flatten) and is_plain(layer, nn.Flatten) and layer.start_dim == 1)
        for layer in before
    )
    if flattens and isinstance(last, nn.Linear) and is_plain(last, nn.Linear):
        return last if all(value.requires_grad for value in last.parameters()) else None
    return None


def members(sequence: nn.Module) -> list[nn.Module]:
    """The modules of a sequence; one that is used twice is listed twice."""
    return [module for module in sequence._modules.values() if module is not None]  # pyright: ignore[reportPrivateUsage]


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the module computes what its kind computes: no custom forward, no hooks, no parametrization."""
    hooked = bool(module._forward_hooks or module._forward_pre_hooks)  # pyright: ignore[reportPrivateUsage]
    parametrized = nn.utils.parametrize.is_parametrized(module)
    return isinstance(module, kind) and type(module).forward is kind.forward and not hooked and not parametrized
