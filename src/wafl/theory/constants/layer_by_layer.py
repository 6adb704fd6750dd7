"""Compute upper bounds for a network, layer by layer.

Two numbers are tracked through the network: ``slope``, the Lipschitz constant of a layer's outputs in the input, and
``bend``, the constant of their Jacobian. Linear layers multiply both by their norm. An activation ``a`` with ``|a'| <=
s`` and ``|a''| <= t`` turns them into ``s slope`` and ``t slope^2 + s bend`` (chain rule: ``J = diag(a') J_inner``). A
kink, as in ReLU or max pooling, makes the gradient jump: the slope is still bounded, but there is no bend.

The last layer is combined with the loss, whose slope and curvature as a function of that layer's input are known
(:meth:`wafl.OutputLoss.slopes` and ``curvature``). For the cross-entropy they are the largest
``||w_j - w_k||`` of two rows of the layer and a quarter of its square, so

    L_z <= max ||w_j - w_k|| slope,    L_zz <= (max ||w_j - w_k||^2 / 4) slope^2 + max ||w_j - w_k|| bend,

with ``slope`` and ``bend`` of the last layer's input.

Layers that rescale their weights (:mod:`wafl.models.layers`) count with their rescaled weights, in float64.

Networks are graphs of layers (:mod:`wafl.tasks.structure.graph`). A sum adds slopes and bends. A concatenation is a
stack of Jacobians, so its slope and bend are roots of sums of squares.

``torch`` computes a softplus as the identity above a threshold, where it jumps by about ``2e-9 / beta``. So a network
with a softplus is only close to one with these slopes. ``jump`` is the largest distance between the outputs of the
two: a layer multiplies it by the largest sum of absolute weights of an output, and a softplus adds its jump.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from wafl.base.fingerprint import tensors_digest
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear, entries_of_gram
from wafl.tasks.losses import OutputLoss, claim_of
from wafl.tasks.rescaling import Rescaled
from wafl.tasks.structure.graph import Concat, NoGraphError, Plus, Sum, Times, plain_graph
from wafl.tasks.structure.sequence import is_plain
from wafl.tasks.structure.trace import trace
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
    nn.GELU: (1.129, 0.7979),  # in both forms
}


NORMALIZING = (nn.BatchNorm1d, nn.BatchNorm2d)
POWER_STEPS = 50
"""The number of power iterations that improve Schur's test."""
LAST = (nn.Linear, NormalizedLinear, LipschitzLinear)
"""The layers that may end a network."""


@dataclass(frozen=True)
class Steepness:
    """``slope`` and ``bend`` of a network as a function of its input, in l2; infinity if there is no bound.

    The network is within ``jump`` of such a function, in each number.
    """

    slope: float
    bend: float
    jump: float = 0.0


def loss_steepness(model: nn.Module, loss: OutputLoss) -> Steepness | None:
    """Return ``(L_z, L_zz)`` of the loss in the input, at the model's parameters.

    Return None if a layer or the loss is unknown.
    """
    layers = last_layer(model)
    if layers is None or layers[1].jump > 0.0:
        return None
    weight, before = layers
    steep, bent = loss.slopes(weight[None]), loss.curvature(weight[None])
    if steep is None:
        return None
    slope, bend = before.slope, before.bend
    widest, curvature = float(steep.max()), math.inf if bent is None else float(bent[0])
    curved = 0.0 if slope == 0.0 else _times(curvature, _square(slope))
    return Steepness(widest * slope, curved + (0.0 if widest == 0.0 else widest * bend))


def last_layer(model: nn.Module) -> tuple[Tensor, Steepness] | None:
    """Return the weights of the last, linear layer, and the steepness before it; None if a layer is unknown.

    The model is a plain sequence or a network, as :func:`plain_form` returns it.
    """
    nodes = plain_graph(model).nodes
    last = nodes[-1].module if nodes else None
    if not isinstance(last, nn.Linear) or type(last) not in LAST:
        return None
    if not all(is_plain(node.module, type(node.module)) for node in nodes):
        return None
    values = [Steepness(1.0, 0.0)]
    for node in nodes[:-1]:
        value = _after(node.module, [values[index] for index in node.inputs])
        if value is None:
            return None
        values.append(value)
    return _used(last), values[nodes[-1].inputs[0]]


def plain_form(model: nn.Module) -> nn.Module:
    """Return a plain sequence or network with a known slope that computes the same function, or the model itself."""
    if last_layer(model) is not None:
        return model
    try:
        form = trace(model, _supports).module()
    except NoGraphError:
        return model
    return model if last_layer(form) is None else form


def _supports(layer: nn.Module) -> bool:
    return type(layer) in (Sum, Concat) or _step(layer) is not None


def _after(layer: nn.Module, inputs: Sequence[Steepness]) -> Steepness | None:
    """Return slope, bend and jump of a layer's outputs."""
    slopes, bends, jumps = ([getattr(value, name) for value in inputs] for name in ("slope", "bend", "jump"))
    if isinstance(layer, Sum):
        return Steepness(*(first + _times(abs(layer.alpha), second) for first, second in (slopes, bends, jumps)))
    if type(layer) is Concat:
        return Steepness(math.hypot(*slopes), math.hypot(*bends), max(jumps))
    step = _step(layer)
    if step is None:
        return None
    (first, second), (slope,), (bend,), (jump,) = step, slopes, bends, jumps
    kink = 0.0 if slope == 0.0 else _times(second, _square(slope))
    jump = jump if jump == 0.0 else jump * _largest_sum(layer)
    return Steepness(first * slope, kink + _times(first, bend), jump + own_jump(layer))


def _square(slope: float) -> float:
    return slope**2 if slope < 1e150 else math.inf


def _times(factor: float, value: float) -> float:
    return 0.0 if factor == 0.0 else factor * value


def declared(model: nn.Module) -> float | None:
    """Return the l2 Lipschitz constant that a user's module declares as ``lipschitz``; None if there is none."""
    bound: object = getattr(model, "lipschitz", None)
    if bound is None or callable(bound):
        return None
    if isinstance(bound, bool) or not isinstance(bound, float | int) or not 0.0 <= bound < math.inf:
        raise ValueError(f"{type(model).__name__}.lipschitz = {bound!r} must be a finite number of at least 0")
    return float(bound)


def why_unproven(task: Task) -> str:
    """Explain why no bound on a model's slope is known: an operation, the last layer, or the loss."""
    model = task.module
    if declared(model) is not None and last_layer(model) is None:
        return "its Lipschitz constant is only attested (model.lipschitz)"
    if last_layer(model) is not None:
        claim = claim_of(task.loss)
        unknown = f"no bound is known for the loss {task.loss.name} of these layers"
        return unknown if claim is None else f"{claim} is only a claim"
    try:
        form = trace(model, _supports).module()
    except NoGraphError as error:
        return str(error)
    return "it does not end with a linear layer" if last_layer(form) is None else "its layers compute something else"


def _used(layer: nn.Linear | nn.Conv2d) -> Tensor:
    weight = layer.weight.detach().double()
    return layer.rescale(weight) if isinstance(layer, Rescaled) else weight


def _step(layer: nn.Module) -> tuple[float, float] | None:
    """Return slope and bend of one layer."""
    if not _keeps_examples(layer):
        return None
    if type(layer) in (nn.Unflatten, Plus):
        return 1.0, 0.0
    if type(layer) in ACTIVATIONS:
        return ACTIVATIONS[type(layer)]
    if type(layer) is nn.LeakyReLU:
        return max(1.0, abs(layer.negative_slope)), math.inf
    if type(layer) is nn.Softplus and layer.beta > 0 and layer.threshold >= 0:
        return 1.0, layer.beta / 4.0
    if type(layer) in (Times, *NORMALIZING):
        scale = scale_of(layer)
        return None if scale is None else (float(scale.max()), 0.0)
    if type(layer) in (LipschitzLinear, LipschitzConv2d):
        return _rescaled_norm(layer), 0.0
    if type(layer) in (nn.Linear, NormalizedLinear):
        layer = cast(nn.Linear, layer)
        return matrix_norm(_used(layer)), 0.0
    if type(layer) is nn.Conv2d and layer.padding_mode == "zeros":
        how = (layer.groups, layer.stride, layer.dilation)
        return _remembered((_digest(layer.weight.double()), *how), partial(_convolution_norm, layer)), 0.0
    if type(layer) is nn.MaxPool2d and layer.ceil_mode is False:
        # Each input is in at most that many windows, and each window passes on one of its inputs.
        return math.sqrt(_windows(layer.kernel_size, layer.stride, layer.dilation)), math.inf
    if type(layer) is nn.AvgPool2d and not layer.ceil_mode and layer.divisor_override is None:
        size = math.prod(_pair(layer.kernel_size))
        whole = layer.count_include_pad or not layer.padding
        return (math.sqrt(_windows(layer.kernel_size, layer.stride, 1) / size), 0.0) if whole else None
    if type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
        return 1.0, 0.0  # the root of one over the number of pixels, which may be 1
    return None


def _keeps_examples(layer: nn.Module) -> bool:
    """Return whether a layer that changes the shape of a batch leaves the dimension of its examples alone."""
    first: object = getattr(layer, "start_dim" if isinstance(layer, nn.Flatten) else "dim", 1)
    return not isinstance(layer, nn.Flatten | nn.Unflatten) or (isinstance(first, int) and first >= 1)


def scale_of(layer: nn.Module) -> Tensor | None:
    """Return the absolute factors of a layer that multiplies numbers by constants; None for batch statistics."""
    if isinstance(layer, Times):
        return layer.value.detach().double().abs()
    normalizing = cast(nn.BatchNorm2d, layer)
    if normalizing.running_var is None:
        return None  # it would normalize by the statistics of a batch
    deviation = (normalizing.running_var.detach().double() + normalizing.eps).sqrt()
    weight = deviation.new_ones(()) if normalizing.weight is None else normalizing.weight.detach().double()  # pyright: ignore[reportUnnecessaryComparison]
    return (weight / deviation).abs()


def _largest_sum(layer: nn.Module) -> float:
    """Return the largest sum of absolute weights of an output, which is how much a layer raises the largest number."""
    if isinstance(layer, nn.Linear | nn.Conv2d):
        return float(_used(layer).flatten(1).abs().sum(1).max())
    pools = isinstance(layer, nn.MaxPool2d | nn.AvgPool2d | nn.AdaptiveAvgPool2d)
    return 1.0 if pools else cast(tuple[float, float], _step(layer))[0]


def own_jump(layer: nn.Module) -> float:
    """Return the jump that the layer itself adds: 0 except for a softplus."""
    return math.log1p(math.exp(-layer.threshold)) / layer.beta * (1.0 + 1e-9) if type(layer) is nn.Softplus else 0.0


def _rescaled_norm(layer: Any) -> float:
    """Return an upper bound, about 1, on the norm of a layer with its rescaled weights V.

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
    """Bound the norm of a convolution W on images of any size.

    It is at most the norm of the kernel on one patch, times the root of the number of patches that contain an input.
    Its square is also the largest eigenvalue of ``R = W^T W`` and of ``R = W W^T``, which :func:`_largest_eigenvalue`
    bounds. Strides and zeros around an image only remove rows and columns of W, and a dilated kernel acts on several
    images apart.
    """
    squares: list[float] = []
    for part in layer.weight.detach().double().chunk(layer.groups):
        patch = matrix_norm(part.flatten(1)) ** 2
        windows = _windows(part.shape[2:], layer.stride, layer.dilation)
        squares.append(min(patch * windows, *(_largest_eigenvalue(each) for each in (part, part.transpose(0, 1)))))
    return math.sqrt(max(squares))


def _largest_eigenvalue(weight: Tensor) -> float:
    """Bound the largest eigenvalue of ``R = W W^T`` for kernels ``[out, in, height, width]``, by Schur's test.

    It is at most ``max_i sum_j |R_ij| v_j / v_i`` for positive numbers v of the channels, with ``|R_ij|`` summed over
    all offsets of two pixels. Power iteration finds a good v.
    """
    # A correlation of the kernels with each other: it needs far less memory than the products of all pairs of taps.
    around = [side - 1 for side in weight.shape[2:]]
    entries, sizes = (
        functional.conv2d(each, each, padding=around).abs().sum((2, 3)) for each in (weight, weight.abs())
    )
    entries = entries + 2.0 * (weight[0].numel() + 8) * UNIT * sizes
    least, v = math.inf, torch.ones_like(entries[0])
    for _ in range(POWER_STEPS):
        sums = entries @ v
        least = min(least, float((sums / v).max()))
        v = (sums / sums.max().clamp_min(1e-300)).clamp_min(1e-100)
    return least


_NORMS: dict[tuple[Any, ...], float] = {}
"""Norms of layers by the digests of their weights, because one certificate asks about the same layers several times."""
MOST_NORMS = 1024
"""The maximum number of cached norms."""


def matrix_norm(matrix: Tensor) -> float:
    """Return the largest singular value of a matrix."""

    def norm() -> float:
        return float(torch.linalg.matrix_norm(matrix, ord=2)) if bool(matrix.isfinite().all()) else math.inf

    return _remembered((_digest(matrix),), norm)


def _remembered(key: tuple[Any, ...], norm: Callable[[], float]) -> float:
    if key not in _NORMS:
        if len(_NORMS) >= MOST_NORMS:
            _NORMS.clear()
        _NORMS[key] = norm()
    return _NORMS[key]


def _digest(weight: Tensor) -> str:
    return tensors_digest([weight], [list(weight.shape), str(weight.dtype)])


def _windows(size: int | tuple[int, ...], stride: int | tuple[int, ...], dilation: int | tuple[int, ...]) -> int:
    """Return the largest number of windows that contain an input."""
    return math.prod(
        k if d > 1 else math.ceil(k / s) for k, s, d in zip(_pair(size), _pair(stride), _pair(dilation), strict=True)
    )


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
