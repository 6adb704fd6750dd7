"""Upper bounds for a network, layer by layer.

Two numbers are tracked through the network: ``slope``, the Lipschitz constant of a layer's outputs in the input, and
``bend``, that of their Jacobian. A linear layer multiplies both by its norm. An activation ``a`` with ``|a'| <= s`` and
``|a''| <= t`` turns them into ``s slope`` and ``t slope^2 + s bend`` (chain rule: ``J = diag(a') J_inner``). A kink, as
in ReLU or max pooling, makes the gradient jump: the slope is still bounded, but there is no bend.

The last layer is taken together with the loss, whose slope and curvature as a function of that layer's input are known
(:meth:`wafl.OutputLoss.slopes` and ``curvature``). For the cross-entropy they are the largest
``||w_j - w_k||`` of two rows of the layer and a quarter of its square, so

    L_z <= max ||w_j - w_k|| slope,    L_zz <= (max ||w_j - w_k||^2 / 4) slope^2 + max ||w_j - w_k|| bend,

with ``slope`` and ``bend`` those of the last layer's input.

Layers that rescale their weights (:mod:`wafl.models.layers`) count with the weights that they use, in float64.
"""

import hashlib
import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear, entries_of_gram
from wafl.tasks.losses import OutputLoss
from wafl.tasks.rescaling import Rescaled
from wafl.tasks.structure.sequence import is_plain, members
from wafl.tasks.task import Task

UNIT = 2.0**-53

# |a'| and |a''| of activations, rounded up; infinity if a' jumps.
ACTIVATIONS: dict[type[nn.Module], tuple[float, float]] = {
    nn.Identity: (1.0, 0.0),
    nn.Flatten: (1.0, 0.0),
    nn.PixelUnshuffle: (1.0, 0.0),
    MaxMin: (1.0, math.inf),
    nn.ReLU: (1.0, math.inf),
    nn.Tanh: (1.0, 0.7699),
    nn.Sigmoid: (0.25, 0.09623),
    nn.SiLU: (1.0999, 0.5),
}


LAST = (nn.Linear, NormalizedLinear, LipschitzLinear)
"""What a network may end with."""


@dataclass(frozen=True)
class Steepness:
    """``slope`` and ``bend`` of a network as a function of its input, in l2; infinity if there is no bound."""

    slope: float
    bend: float


def loss_steepness(model: nn.Module, loss: OutputLoss) -> Steepness | None:
    """``(L_z, L_zz)`` of the loss in the input, at the model's parameters; None if a layer or the loss is not known."""
    layers = last_layer(model)
    if layers is None:
        return None
    weight, before = layers
    steep, bent = loss.slopes(weight[None]), loss.curvature(weight[None])
    if steep is None:
        return None
    slope, bend = before.slope, before.bend
    widest, curvature = float(steep.max()), math.inf if bent is None else float(bent[0])
    curved = 0.0 if slope == 0.0 else curvature * slope**2
    return Steepness(widest * slope, curved + (0.0 if widest == 0.0 else widest * bend))


def last_layer(model: nn.Module) -> tuple[Tensor, Steepness] | None:
    """The weights of the last, linear layer, and slope and bend of what comes before; None if a layer is not known."""
    layers = plain_layers(model)
    last = layers[-1] if layers else None
    if not isinstance(last, nn.Linear) or type(last) not in LAST:
        return None
    if not all(is_plain(layer, type(layer)) for layer in layers):
        return None
    slope, bend = 1.0, 0.0
    for layer in layers[:-1]:
        step = _step(layer)
        if step is None:
            return None
        first, second = step
        kink = 0.0 if slope == 0.0 else second * slope**2
        slope, bend = first * slope, kink + (0.0 if first == 0.0 else first * bend)
    return _used(last), Steepness(slope, bend)


def declared(model: nn.Module) -> float | None:
    """The Lipschitz constant in l2 of the outputs that a module of one's own says it has, as ``lipschitz``, if any."""
    bound: object = getattr(model, "lipschitz", None)
    if bound is None or callable(bound):
        return None
    if isinstance(bound, bool) or not isinstance(bound, float | int) or not 0.0 <= bound < math.inf:
        raise ValueError(f"{type(model).__name__}.lipschitz = {bound!r} must be a finite number of at least 0")
    return float(bound)


def plain_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a plain sequence, including nested ones, each as often as it occurs."""
    if not is_plain(model, nn.Sequential):
        return [model]
    return [layer for child in members(model) for layer in plain_layers(child)]


def why_unproven(task: Task) -> str:
    """Explain why no bound on a model's slope is known: its code, one of its layers, or its loss."""
    layers = plain_layers(task.module)
    if declared(task.module) is not None and last_layer(task.module) is None:
        return "its Lipschitz constant is only attested (model.lipschitz)"
    if layers == [task.module] and type(task.module) not in LAST:
        return f"{type(task.module).__name__} is a module of your own, not an nn.Sequential of layers with known bounds"
    for layer in layers:
        name = type(layer).__name__
        if not is_plain(layer, type(layer)):
            return f"its layer {name} has hooks or replaced methods"
        if _step(layer) is None:
            return f"no bound is known for its layer {name}"
    if last_layer(task.module) is None:
        return "it does not end with a linear layer"
    return f"no bound is known for the loss {task.loss.name} of these layers"


def _used(layer: nn.Linear | nn.Conv2d) -> Tensor:
    weight = layer.weight.detach().double()
    return layer.rescale(weight) if isinstance(layer, Rescaled) else weight


def _step(layer: nn.Module) -> tuple[float, float] | None:
    """Slope and bend of one layer."""
    if type(layer) in ACTIVATIONS:
        return ACTIVATIONS[type(layer)]
    if type(layer) in (LipschitzLinear, LipschitzConv2d):
        return _rescaled_norm(layer), 0.0
    if type(layer) in (nn.Linear, NormalizedLinear):
        layer = cast(nn.Linear, layer)
        return matrix_norm(_used(layer)), 0.0
    if type(layer) is nn.Conv2d and layer.padding_mode == "zeros":
        return _convolution_norm(layer), 0.0
    if type(layer) is nn.MaxPool2d and layer.ceil_mode is False:
        # Each input is in at most that many windows, and each window passes on one of its inputs.
        return math.sqrt(_windows(layer.kernel_size, layer.stride, layer.dilation)), math.inf
    if type(layer) is nn.AvgPool2d and not layer.ceil_mode and layer.divisor_override is None and not layer.padding:
        size = math.prod(_pair(layer.kernel_size))
        return math.sqrt(_windows(layer.kernel_size, layer.stride, 1) / size), 0.0
    return None


def _rescaled_norm(layer: Any) -> float:
    """At most the norm of a layer with the weights V that it uses, about 1.

    ``||V||^2``, the largest eigenvalue of ``R = V^T V``, is at most ``max_i sum_j |R_ij| v_j / v_i`` for any positive
    v, and 1 for the one that V was rescaled by. An entry of R that is a sum of n products is off by at most n units of
    the sum of their sizes.
    """
    if isinstance(layer, nn.Conv2d) and (layer.stride, layer.dilation, layer.groups) != ((1, 1), (1, 1), 1):
        return math.inf
    weight, used = (
        value.view(*value.shape[:2], *(value.shape[2:] or (1, 1))) for value in (layer.weight, _used(layer))
    )
    weight = weight.detach().double()
    if len(used) < used.shape[1]:
        weight, used = weight.transpose(0, 1), used.transpose(0, 1)
    terms = used[:, 0].numel() + 8
    lengths, plain_lengths = (value.transpose(0, 1).flatten(1).norm(dim=1) for value in (used, weight))
    scale = (plain_lengths / lengths).nan_to_num(1.0, 1.0, 1.0).clamp(1e-150, 1e150)
    entries = entries_of_gram(used) + 2.0 * terms * UNIT * entries_of_gram(used.abs())
    largest = float(((entries * scale).sum(1) / scale).max()) * (1.0 + 4.0 * len(scale) * UNIT)
    return math.sqrt(largest) * (1.0 + 4.0 * UNIT)


def _convolution_norm(layer: nn.Conv2d) -> float:
    """At most the norm of the kernel as a matrix on patches, times the root of how many patches an input is in."""
    kernel = layer.weight.detach().double()
    groups: list[Tensor] = list(kernel.chunk(layer.groups))
    matrix = max(matrix_norm(part.flatten(1)) for part in groups)
    return matrix * math.sqrt(_windows(kernel.shape[2:], layer.stride, layer.dilation))


_NORMS: dict[bytes, float] = {}
"""Norms of matrices by their digests: one certificate asks about the same layers several times."""


def matrix_norm(matrix: Tensor) -> float:
    """Return the largest singular value of a matrix."""
    digest = hashlib.blake2b(repr(matrix.shape).encode())
    digest.update(matrix.cpu().contiguous().numpy().tobytes())
    key = digest.digest()
    if key not in _NORMS:
        _NORMS[key] = float(torch.linalg.matrix_norm(matrix, ord=2))
    return _NORMS[key]


def _windows(size: int | tuple[int, ...], stride: int | tuple[int, ...], dilation: int | tuple[int, ...]) -> int:
    """The largest number of windows that an input is in."""
    return math.prod(
        k if d > 1 else math.ceil(k / s) for k, s, d in zip(_pair(size), _pair(stride), _pair(dilation), strict=True)
    )


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
