"""Define the checker's knowledge of a layer: its slope, its effect on sizes, and the number of terms in its sums."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear
from wafl.tasks.rescaling import make_plain
from wafl.tasks.structure.graph import Concat, Plus, Sum, Times
from wafl.tasks.structure.sequence import is_patched

UNIT = 2.0**-53
WIDER = 1.0 + 2.0**-30
"""Norms are increased by this factor; the singular values of a matrix are off by far less."""
LEAST, MOST = 1e-100, 1e100
"""The range of nonzero weights: the squares of others underflow or overflow, and with them the slope of a network."""
STEPS = 50
"""The number of iterations that improve the bound on a convolution's norm."""
MANY = 2**20
"""The maximum number of averaged pixels, which bounds the rounding error of a mean."""
RESCALED = (LipschitzLinear, LipschitzConv2d, NormalizedLinear)
KEEPING = (nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelUnshuffle)
"""Layers that change only the order of their numbers."""
SLOPES: dict[type[nn.Module], float] = {nn.ReLU: 1.0, nn.Tanh: 1.0, nn.Sigmoid: 0.25, nn.SiLU: 1.1, nn.GELU: 1.13}
"""The slopes of activations; for all but the sigmoid, ``|a(z)|`` is at most this times ``|z|``, too."""


@dataclass(frozen=True)
class Layer:
    """The known properties of a layer: its l2 slope, its effect on sizes, and the number of terms in its sums."""

    module: nn.Module
    slope: float
    sizes: Callable[..., Tensor]
    summed: int = 0
    jump: float = 0.0
    """The maximum distance to a function with this slope, in each number."""
    raises: float | None = None
    """The factor by which it raises the largest change of a number at most; None if that is the slope."""
    inputs: tuple[int, ...] = ()
    """The indices of its input values: 0 is the input of the model, and k the output of layer k - 1."""


NORMALIZING = (nn.BatchNorm1d, nn.BatchNorm2d)


def _factor(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Tensor:
    """Return the factors by which a normalization multiplies each channel, in absolute value."""
    assert layer.running_var is not None
    factor = (layer.running_var + layer.eps).rsqrt()
    return factor if layer.weight is None else factor * layer.weight.abs()  # pyright: ignore[reportUnnecessaryComparison]


def _is_plain(module: nn.Module) -> bool:
    """Return whether a layer computes what its kind computes; the tracer has looked for hooks and replaced methods.

    No digest contains weights that are neither parameters nor buffers, and few known layers have buffers.
    """
    buffers = vars(module).get("_buffers")
    return not is_patched(type(module)) and (not buffers or type(module) in (*NORMALIZING, Times, Plus))


def read_layer(layer: nn.Module) -> Layer | None:
    """Return the known properties of a layer, or None; kinds are compared, because subclasses may compute anything."""
    if not _is_plain(layer):
        return None
    layer = copy.deepcopy(layer).requires_grad_(False)
    if type(layer) in RESCALED and isinstance(layer, RESCALED):
        layer.weight = nn.Parameter(layer.rescale(layer.weight), requires_grad=False)
        layer = make_plain(layer)
    kind = type(layer)
    if kind in SLOPES:
        if isinstance(layer, nn.ReLU | nn.SiLU):
            layer.inplace = False
        least = 1.0 if kind is nn.Sigmoid else 0.0
        return Layer(layer, SLOPES[kind], lambda size: (size * max(SLOPES[kind], 1.0)).clamp_min(least))
    if kind is nn.LeakyReLU and isinstance(layer, nn.LeakyReLU):
        layer.inplace = False
        steepest = max(1.0, abs(layer.negative_slope))
        return Layer(layer, steepest, lambda size: size * steepest)
    if kind is nn.Softplus and isinstance(layer, nn.Softplus) and layer.beta > 0 and layer.threshold >= 0:
        rest = math.log(2.0) / layer.beta * WIDER
        jump = math.log1p(math.exp(-layer.threshold)) / layer.beta * WIDER
        return Layer(layer, 1.0, lambda size: size + rest, jump=jump)
    if kind in KEEPING and (not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) == (1, -1)):
        whole = not isinstance(layer, nn.Unflatten) or layer.dim == 1
        return Layer(layer, 1.0, layer) if whole else None
    if kind is MaxMin:
        return Layer(layer, 1.0, lambda size: torch.cat([torch.maximum(*size.chunk(2, dim=1))] * 2, dim=1))
    if isinstance(layer, Sum | Concat):
        one = copy.deepcopy(layer)
        if isinstance(one, Sum):
            one.alpha = abs(one.alpha)
        return Layer(layer, 1.0, one, 1)
    if isinstance(layer, Plus):
        return Layer(layer, 1.0, _absolute(layer), 1)
    if isinstance(layer, Times):
        return Layer(layer, float(layer.value.abs().max()) * WIDER, _absolute(layer), 1)
    if kind in NORMALIZING and isinstance(layer, NORMALIZING) and layer.running_var is not None:
        normal = _factor(layer)
        if not bool((normal.isfinite()).all()):
            return None
        return Layer(layer, float(normal.max()) * WIDER, _absolute_normalization(layer), 8)
    if kind is nn.Linear and isinstance(layer, nn.Linear):
        slope = largest_singular_value(layer.weight)
        return Layer(layer, slope, _absolute(layer), layer.weight.shape[1] + 1, raises=_row(layer))
    if kind is nn.Conv2d and isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
        return Layer(layer, _convolution_norm(layer), _absolute(layer), layer.weight[0].numel() + 1, raises=_row(layer))
    if kind is nn.MaxPool2d and isinstance(layer, nn.MaxPool2d) and not (layer.ceil_mode or layer.return_indices):
        slope = math.sqrt(_windows(layer.kernel_size, layer.stride, layer.dilation)) * WIDER
        return Layer(layer, slope, layer, raises=1.0)
    if kind is nn.AvgPool2d and isinstance(layer, nn.AvgPool2d):
        size = math.prod(_pair(layer.kernel_size))
        slope = math.sqrt(_windows(layer.kernel_size, layer.stride, 1) / size) * WIDER
        whole = not layer.ceil_mode and layer.divisor_override is None
        whole = whole and (layer.count_include_pad or not layer.padding)
        return Layer(layer, slope, layer, size, raises=1.0) if whole else None
    if kind is nn.AdaptiveAvgPool2d and isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1)):
        return Layer(layer, 1.0, _few_pixels(layer), MANY)
    return None


def largest_singular_value(matrix: Tensor) -> float:
    """Return an upper bound on the largest singular value of a float64 matrix, however exact torch's SVD is.

    For any U, S and V, ``||A|| <= ||U|| ||V|| max |S| + ||A - U S V^T||_F``, and ``||U||^2 <= 1 + ||U^T U - I||_F``. A
    product of matrices with n terms per entry is off by at most ``2 n UNIT`` times the product of the absolute values
    (Higham, section 3.5), whose Frobenius norm is at most the product of both Frobenius norms. WIDER covers the
    rounding of these norms, and the last factor the four operations that remain. A power of 2 first brings the largest
    entry close to 1, so that nothing overflows, and what underflows is far smaller than UNIT.
    """
    largest = float(matrix.abs().max())
    if not LEAST <= largest <= MOST:
        return 0.0 if largest == 0.0 else math.inf
    exponent = math.frexp(largest)[1]
    scaled = matrix * 2.0**-exponent
    left, values, right = torch.linalg.svd(scaled, full_matrices=False)
    left_values = left * values
    product = (left_values @ right - scaled).norm()
    product += 2.0 * (len(values) + 2) * UNIT * left_values.norm() * right.norm()
    stretched = math.sqrt(_stretched(left.T) * _stretched(right))
    bound = (stretched * float(values.abs().max()) + WIDER * float(product)) * (1.0 + 16.0 * UNIT)
    return math.ldexp(bound, exponent)


def _stretched(rows: Tensor) -> float:
    """Return an upper bound on the square of the norm of a matrix whose rows are about orthonormal."""
    off = (rows @ rows.T - torch.eye(len(rows), dtype=torch.float64)).norm()
    return 1.0 + WIDER * float(off + 2.0 * (rows.shape[1] + 2) * UNIT * rows.square().sum())


def _few_pixels(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    def sizes(size: Tensor) -> Tensor:
        if size[0, 0].numel() > MANY:
            raise ValueError(f"an image has {size[0, 0].numel():,} pixels, and at most {MANY:,} are averaged")
        return layer(size)

    return sizes


def _row(layer: nn.Linear | nn.Conv2d) -> float:
    """Return the largest sum of absolute weights of an output."""
    return float(layer.weight.flatten(1).abs().sum(1).max())


def _absolute_normalization(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    """Return the sizes of ``(x - mean) w / sqrt(var + eps) + b``, whose terms do not cancel."""
    absolute = copy.deepcopy(layer)
    assert absolute.running_mean is not None
    absolute.running_mean = -absolute.running_mean.abs()
    for value in absolute.parameters():
        value.abs_()
    return absolute


def _absolute(layer: nn.Linear | nn.Conv2d | Times | Plus) -> nn.Module:
    """Return the layer of the absolute values of its weights and biases."""
    absolute = copy.deepcopy(layer)
    for value in (*absolute.parameters(), *absolute.buffers()):
        value.abs_()
    return absolute


def _convolution_norm(layer: nn.Conv2d) -> float:
    """Bound the norm of a convolution W on images of any size.

    It is at most the norm of the kernel on one patch, times the root of the number of patches with an input. Its
    square, the largest eigenvalue of ``R = W^T W``, is at most ``max_i sum_j |R_ij| v_j / v_i`` for any positive
    numbers v of the channels, with ``|R_ij|`` summed over all offsets of two pixels (Schur's test); the same holds of
    ``W W^T``. Strides and zeros around an image remove rows and columns, and a dilated filter acts on several images
    apart.
    """
    squares = list[float]()
    for part in layer.weight.chunk(layer.groups):
        patch = largest_singular_value(part.flatten(1)) ** 2
        windows = _windows(part.shape[2:], layer.stride, layer.dilation)  # the kernel in use, not the declared one
        squares.append(min(patch * windows, _by_entries(part), _by_entries(part.transpose(0, 1))))
    return math.sqrt(max(squares)) * WIDER


def _by_entries(weight: Tensor) -> float:
    around = [side - 1 for side in weight.shape[2:]]
    entries, sizes = (
        functional.conv2d(each, each, padding=around).abs().sum((2, 3)) for each in (weight, weight.abs())
    )
    entries = entries + 2.0 * (weight[0].numel() + 8) * UNIT * sizes
    least, v = math.inf, torch.ones(len(entries), dtype=torch.float64)
    for _ in range(STEPS):
        sums = entries @ v
        least = min(least, float((sums / v).max()))
        v = (sums / sums.max().clamp_min(1e-300)).clamp_min(1e-100)
    return least


def _windows(size: int | Sequence[int], stride: int | Sequence[int], dilation: int | Sequence[int]) -> int:
    """Return the largest number of windows that contain an input."""
    about = zip(_pair(size), _pair(stride), _pair(dilation), strict=True)
    return math.prod(k if d > 1 else math.ceil(k / s) for k, s, d in about)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def constants_of(layer: nn.Module) -> list[Tensor]:
    """Return the numbers of a layer that are not parameters."""
    return [_factor(layer)] if isinstance(layer, NORMALIZING) else list(layer.buffers())
