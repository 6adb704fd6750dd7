"""Use the known structure of a model, one linear layer or a chain of layers, with the same numbers."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wafl.tasks.gpu import precision
from wafl.tasks.gpu.kernels import Fused, fuse
from wafl.tasks.inputs import Inputs, Shifted, dense, shared
from wafl.tasks.layout import Layout, trainable
from wafl.tasks.losses import OutputLoss, output_loss, value_and_slope
from wafl.tasks.modes.one_by_one import autograd_gradient
from wafl.tasks.products import product
from wafl.tasks.structure.sequence import ELEMENTWISE, Chain, Passed, has_bias, is_plain, members
from wafl.tasks.task import Loss, Masks, Moved, Task


def make_task(
    model: nn.Module,
    loss: Loss = "cross_entropy",
    device: torch.device | str = "cpu",
    layout: Layout | None = None,
) -> Task:
    """Return the task of a model, which uses its structure if known; the default layout is :meth:`Layout.of`."""
    if layout is None:
        _refuse_batch_statistics(model)
        layout = Layout.of(model)
    module = copy.deepcopy(model).to(device)
    if not trainable(module):
        raise ValueError(f"{type(model).__name__} has no trainable parameters")
    layer = _only_linear_layer(module)
    if layer is not None:
        return LinearTask(module, layer, output_loss(loss), layout)
    layers = _chain(module)
    if layers is None:
        return Task(module, output_loss(loss), layout)
    if not any(isinstance(layer, nn.Conv2d | nn.MaxPool2d) for layer in layers):
        return LayeredTask(module, layers, output_loss(loss), layout)
    fused = fuse(layers) if torch.device(device).type == "cuda" else None
    if fused is not None:
        return FusedTask(module, fused, output_loss(loss), layout)
    return Task(module, output_loss(loss), layout)


class LinearTask(Task):
    """A model with outputs ``W x + b``, whose derivatives have closed forms without autograd."""

    in_streams = False

    def __init__(self, module: nn.Module, layer: nn.Linear, loss: OutputLoss, layout: Layout) -> None:
        super().__init__(module, loss, layout)
        self._classes, self._features = layer.out_features, layer.in_features
        self._has_bias = has_bias(layer)

    def linear(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Return W and b of each lane."""
        split = self._classes * self._features
        weight = params[:, :split].view(-1, self._classes, self._features)
        return weight, params[:, split:] if self._has_bias else params.new_zeros(len(params), self._classes)

    def outputs(self, params: Tensor, x: Moved, masks: Masks | None = None) -> Tensor:
        """Return the outputs ``[L, B, C]``."""
        if isinstance(x, Shifted):
            return super().outputs(params, x, masks)
        inputs = shared(x)
        if inputs.outputs is not None:
            return inputs.outputs.mT
        weight, bias = self.linear(params)
        base = inputs.base.flatten(2)
        # All lanes that share a batch go into one product: [G, R C, D] x [G, D, B].
        products = product(weight.reshape(len(base), -1, self._features), base)
        return (products.view(inputs.lanes, self._classes, -1) + bias[..., None]).mT

    def losses_and_gradient(
        self, params: Tensor, x: Moved, y: Tensor, weight: Tensor, masks: Masks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses, and the gradient in the parameters of their weighted sum."""
        if isinstance(x, Shifted):
            return super().losses_and_gradient(params, x, y, weight, masks)
        inputs = shared(x)
        outputs = self.outputs(params, inputs)
        residual = self.loss.gradient(outputs, y).mT * weight[:, None]
        base = inputs.base.flatten(2)
        slope = torch.bmm(residual.reshape(len(base), -1, base.shape[1]), base).view(inputs.lanes, self._classes, -1)
        if inputs.shift is not None and inputs.weight is not None:
            slope.baddbmm_(torch.bmm(residual, inputs.shift.mT), inputs.weight)
        slopes = [slope.flatten(1)]
        if self._has_bias:
            slopes.append(residual.sum(-1))
        return self.loss.value(outputs, y), torch.cat(slopes, dim=1)

    def input_gradient(
        self, params: Tensor, x: Tensor | Shifted, y: Tensor, masks: Masks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses, and their gradients in the moved inputs or features."""
        if isinstance(x, Shifted):
            return super().input_gradient(params, x, y, masks)
        outputs = self.outputs(params, x)
        gradients = torch.bmm(self.loss.gradient(outputs, y), self.linear(params)[0])
        return self.loss.value(outputs, y), gradients.view_as(x)

    def curvature(self, params: Tensor, norm: float = 2) -> Tensor | None:
        """Return L_zz ``[L]``, or None if it is unknown."""
        return self.loss.curvature(self.linear(params)[0], norm)


class LayeredTask(Task):
    """A chain of plain layers: lanes are the batch of each matrix product, without the overhead of ``vmap``."""

    in_streams = False

    def __init__(self, module: nn.Module, layers: Sequence[nn.Module], loss: OutputLoss, layout: Layout) -> None:
        super().__init__(module, loss, layout)
        self._chain = Chain(layers)

    def outputs(self, params: Tensor, x: Moved, masks: Masks | None = None) -> Tensor:
        """Return the outputs ``[L, B, C]``."""
        if isinstance(x, Shifted):
            return super().outputs(params, x, masks)
        if passed := _passed(x):
            return passed[-1]
        with precision.layers(params.device):
            return self._chain.forward(self._values(params), dense(x))[-1].to(params.dtype)

    def forward(self, params: Tensor, x: Tensor, masks: Masks | None = None) -> Inputs:
        """Return the examples with their forward pass."""
        if precision.is_reduced():
            return super().forward(params, x, masks)
        with torch.no_grad():
            return Inputs(x, len(x), passed=self._chain.forward(self._values(params), x))

    def losses_and_gradient(
        self, params: Tensor, x: Moved, y: Tensor, weight: Tensor, masks: Masks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses, and the gradient in the parameters of their weighted sum."""
        if isinstance(x, Shifted):
            return super().losses_and_gradient(params, x, y, weight, masks)
        if precision.is_reduced():
            slope, losses = autograd_gradient(lambda point: self._total(point, x, y, weight))(params)
            return losses, slope
        gradient = torch.empty_like(params)
        with torch.no_grad():
            values = self._values(params)
            passed = _passed(x) or self._chain.forward(values, dense(x))
            losses, slope = value_and_slope(self.loss, passed[-1], y, weight)
            self._chain.write_gradient(values, passed, slope, self._values(gradient))
        return losses, gradient

    def _total(self, params: Tensor, x: Moved, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the losses, and the losses, with the casts of a reduced precision."""
        losses = self.losses(params, x, y)
        return (weight * losses).sum(), losses

    def input_gradient(
        self, params: Tensor, x: Tensor | Shifted, y: Tensor, masks: Masks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses, and their gradients in the moved inputs or features."""
        if isinstance(x, Shifted):
            return super().input_gradient(params, x, y, masks)
        if precision.is_reduced():
            one = params.new_ones(())
            slope, losses = autograd_gradient(lambda point: self._total(params.detach(), point, y, one))(x)
            return losses, slope
        with torch.no_grad():
            values = self._values(params)
            passed = self._chain.forward(values, x)
            losses, slope = value_and_slope(self.loss, passed[-1], y, params.new_ones(x.shape[:2]))
            return losses, self._chain.input_slope(values, passed, slope)


class FusedTask(Task):
    """A network of convolutions on a GPU; captured steps of a reduced precision run few kernels for all lanes."""

    def __init__(self, module: nn.Module, fused: Fused, loss: OutputLoss, layout: Layout) -> None:
        super().__init__(module, loss, layout)
        self._fused = fused

    def outputs(self, params: Tensor, x: Moved, masks: Masks | None = None) -> Tensor:
        """Return the outputs ``[L, B, C]``."""
        if not isinstance(self._read, tuple) or not self._fuses(x):
            return super().outputs(params, x, masks)
        return self._fused.outputs(self._read, dense(x))

    def input_gradient(
        self, params: Tensor, x: Tensor | Shifted, y: Tensor, masks: Masks | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the losses, and their gradients in the moved inputs or features."""
        if isinstance(x, Shifted) or not isinstance(self._read, tuple) or not self._fuses(x):
            return super().input_gradient(params, x, y, masks)
        return self._fused.input_gradient(self._read, x, y, self.loss)

    def _fuses(self, x: Moved) -> bool:
        return precision.is_reduced() and not isinstance(x, Shifted) and self._fused.takes(dense(x))


def _passed(x: Moved) -> Passed | None:
    return x.passed if isinstance(x, Inputs) else None


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.modules.batchnorm._NormBase):  # pyright: ignore[reportPrivateUsage]
            continue
        where = f"{type(layer).__name__} at {name!r}" if name else type(layer).__name__
        instance = isinstance(layer, nn.modules.instancenorm._InstanceNorm)  # pyright: ignore[reportPrivateUsage]
        if not layer.track_running_stats and not instance:
            raise ValueError(
                f"{where} mixes the examples of a batch: use torch.nn.GroupNorm or torch.nn.LayerNorm instead"
            )
        if layer.track_running_stats and layer.training and instance:
            raise ValueError(
                f"{where} keeps its own statistics while it trains: call its eval() to train with those that it "
                "has, or leave out track_running_stats"
            )
        if layer.track_running_stats and layer.training and layer.momentum is None:
            raise ValueError(
                f"{where} has momentum=None, which counts all batches, and clients see different ones: give it a "
                "momentum, such as 0.1, or call its eval()"
            )


def _only_linear_layer(module: nn.Module) -> nn.Linear | None:
    """Return the layer of a model that is certainly ``W x + b``: a plain Linear after only flattening."""
    layers = members(module) if is_plain(module, nn.Sequential) else [module]
    *before, last = layers or [module]
    flattens = all(
        is_plain(layer, nn.Identity)
        or (isinstance(layer, nn.Flatten) and is_plain(layer, nn.Flatten) and layer.start_dim == 1)
        for layer in before
    )
    if flattens and isinstance(last, nn.Linear) and is_plain(last, nn.Linear) and _is_in_order(last):
        return last if all(value.requires_grad for value in last.parameters()) else None
    return None


def _is_in_order(layer: nn.Module) -> bool:
    """Return whether the weight comes before the bias, as formulas assume; replacing a weight moves it last."""
    return next(layer.named_parameters())[0] == "weight"


def _chain(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a model that is a plain sequence of layers for a chain or GPU kernels, or None."""
    if is_plain(module, nn.Sequential):
        chains = [_chain(layer) for layer in members(module)]
        layers = [layer for chain in chains if chain is not None for layer in chain]
        values = [id(value) for layer in layers for value in layer.parameters()]
        distinct = len({id(layer) for layer in layers}) == len(layers) and len(set(values)) == len(values)
        return layers if distinct and None not in chains else None
    if isinstance(module, nn.Flatten):
        return [module] if is_plain(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1) else None
    if isinstance(module, nn.Linear | nn.Conv2d):
        trainable = all(value.requires_grad for value in module.parameters()) and _is_in_order(module)
        if isinstance(module, nn.Linear):
            return [module] if trainable and is_plain(module, nn.Linear) else None
        plain = is_plain(module, nn.Conv2d) and module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return [module] if trainable and plain else None
    if isinstance(module, nn.MaxPool2d):
        return [module] if is_plain(module, nn.MaxPool2d) and not module.return_indices else None
    in_place = getattr(module, "inplace", False)
    return [module] if not in_place and any(is_plain(module, kind) for kind in ELEMENTWISE) else None
