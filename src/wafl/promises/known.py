"""What the checker has to know: models and how steep they are, certified quantities, and the ball.

A sequence of plain layers is read into float64; a layer that rescales its weights is the plain layer of those that it
uses, as float64 gives them. Two things are known of it. The **outputs**, with a bound on what float64 has lost: a sum
of n products is off by at most ``n u`` times the sum of their sizes (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1; ``u = 2^-53``), so if layer k sums ``n_k`` numbers, what it computes is off by at most
``u sum_k (n_k + 4)`` times its *size*, which is what the same layers give for ``|x|``, with ``|W|`` and ``|b|``. And
the **slopes**: a margin ``s_j - s_y`` changes by at most ``K_yj ||x' - x||``, with ``K_yj`` the norm of the difference
of two rows of the last layer, times the norms of the layers before it.

The search of :mod:`wafl.theory` has classes of its own: the checker shares no code with it.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from wafl.base.norms import dual, power_norm
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear
from wafl.tasks.losses import CrossEntropy, MarginLoss, OutputLoss, SquaredError
from wafl.tasks.rescaling import make_plain
from wafl.tasks.structure.sequence import has_hooks, is_same

UNIT = 2.0**-53
WIDER = 1.0 + 2.0**-30
"""Norms are made larger by this factor: the singular values of a matrix are off by far less."""
LEAST, MOST = 1e-100, 1e100
"""Sizes of weights that are not 0: the squares of others are lost, and with them how steep a network is."""
STEPS = 50
"""How often the weights of the bound on a convolution's norm are improved."""
RESCALED = (LipschitzLinear, LipschitzConv2d, NormalizedLinear)
KEEPING = (nn.Identity, nn.Flatten, nn.PixelUnshuffle)
"""Layers that put the same numbers into another order."""
SLOPES: dict[type[nn.Module], float] = {nn.ReLU: 1.0, nn.Tanh: 1.0, nn.Sigmoid: 0.25, nn.SiLU: 1.1}
"""How steep activations are; for all but the sigmoid, ``|a(z)|`` is at most this times ``|z|``, too."""


@dataclass(frozen=True)
class Layer:
    """What is known of a layer: its l2 slope, what it makes of its inputs' sizes, and how many numbers it sums."""

    module: nn.Module
    slope: float
    sizes: Callable[[Tensor], Tensor]
    summed: int = 0


@dataclass(frozen=True)
class Outputs:
    """A model's outputs ``[n, C]``, and by how much each may be off at most ``[n]``."""

    values: Tensor
    error: Tensor


@dataclass(frozen=True)
class Known:
    """A model that is a sequence of known layers, in float64, with a loss that is known."""

    layers: tuple[Layer, ...]
    last: Tensor
    """The weights of the last layer ``[C, H]``."""
    loss: OutputLoss

    @property
    def classifies(self) -> bool:
        return isinstance(self.loss, CrossEntropy | MarginLoss)

    @property
    def margin(self) -> tuple[float, float]:
        """u and t of the loss ``t CE((s - u e_y) / t)``."""
        return (self.loss.offset, self.loss.temperature) if isinstance(self.loss, MarginLoss) else (0.0, 1.0)

    @property
    def linear(self) -> bool:
        """Whether the outputs are an affine function of the flat input."""
        return all(type(layer.module) in (nn.Flatten, nn.Identity) for layer in self.layers[:-1])

    @property
    def at_once(self) -> int:
        """How many examples to look at together: of images few, as new memory would take half as long as convolving."""
        return 16 if any(isinstance(layer.module, nn.Conv2d) for layer in self.layers) else 2048

    def plain(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer.module(x)
        return x

    def outputs(self, x: Tensor) -> Outputs:
        """Two passes: one for the outputs, one for their sizes."""
        values, size = x, x.abs()
        with torch.no_grad():
            for layer in self.layers:
                values, size = layer.module(values), layer.sizes(size)
        return Outputs(values, 2.0 * UNIT * sum(layer.summed + 4 for layer in self.layers) * size.amax(1))

    def before(self) -> float:
        """The l2 slope of what comes before the last layer; by logarithms, as a product may be lost on its way."""
        log = math.fsum(math.log(max(layer.slope, LEAST)) for layer in self.layers[:-1])
        return max(math.exp(log), LEAST) * WIDER if log < 700.0 else math.inf

    def margins(self, norm: float, inputs: int) -> Tensor:
        """``K [C (y), C (j)]`` for moves whose length is in this norm."""
        rows = self.last
        if self.linear:
            return torch.stack([power_norm(rows - row, dual(norm), 1) for row in rows]) * WIDER
        lengths = torch.stack([(rows - row).norm(dim=1) for row in rows]) * WIDER
        return lengths * self.before() * _stretch(norm, inputs)

    def widest(self, norm: float, inputs: int) -> float:
        """How far the outputs move at most, in l2, if the input moves by 1 in this norm."""
        rows = self.last
        each = float(power_norm(rows, dual(norm), 2).sum().sqrt())  # of each output alone
        whole = self.layers[-1].slope * _stretch(norm, inputs)
        if not self.linear:
            return whole * self.before() * WIDER
        column = float(rows.norm(dim=0).max())  # in l1 a corner of the ball is a single input
        return min(each, column if norm == 1 else whole) * WIDER


def known(module: nn.Module, loss: OutputLoss) -> Known | None:
    """The model, if every layer is known and does nothing else, and the loss is; otherwise None."""
    whole = copy.deepcopy(module).cpu().double().eval().requires_grad_(False)
    if not is_same(module, whole) or not all(bool(value.isfinite().all()) for value in whole.parameters()):
        return None
    layers = [_read(layer) for layer in _flat(whole)]
    read = [layer for layer in layers if layer is not None]
    if not read or len(read) < len(layers) or type(loss) not in (CrossEntropy, MarginLoss, SquaredError):
        return None
    sizes = [value.abs() for layer in read for value in layer.module.parameters()]
    if not all(bool(((size == 0) | (size >= LEAST) & (size <= MOST)).all()) for size in sizes):
        return None
    last = read[-1].module
    return Known(tuple(read), last.weight, loss) if isinstance(last, nn.Linear) else None


def _flat(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and _is_plain(module):
        return [layer for part in module for layer in _flat(part)]
    return [module]


def _is_plain(module: nn.Module) -> bool:
    """Whether it computes what its kind computes: nothing is replaced on the object, and nothing hooks into it.

    Weights that are neither parameters nor buffers are in no digest, and no known layer has a buffer.
    """
    replaced = set(vars(module)) & {"forward", "_conv_forward", "rescale", "__call__", "_call_impl", "weight", "bias"}
    calls = type(module).__call__ is nn.Module.__call__ and (
        not isinstance(module, nn.Sequential) or type(module).__iter__ is nn.Sequential.__iter__
    )
    return calls and not replaced and not has_hooks(module) and not vars(module).get("_buffers")


def _read(layer: nn.Module) -> Layer | None:
    """What is known of a layer; None if that is nothing. Subclasses may compute anything, so kinds are compared."""
    if not _is_plain(layer):
        return None
    if type(layer) in RESCALED and isinstance(layer, RESCALED):
        layer.weight = nn.Parameter(layer.rescale(layer.weight), requires_grad=False)
        layer = make_plain(layer)
    kind = type(layer)
    if kind in SLOPES:
        if isinstance(layer, nn.ReLU | nn.SiLU):
            layer.inplace = False
        least = 1.0 if kind is nn.Sigmoid else 0.0
        return Layer(layer, SLOPES[kind], lambda size: (size * max(SLOPES[kind], 1.0)).clamp_min(least))
    if kind in KEEPING and (not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) == (1, -1)):
        return Layer(layer, 1.0, layer)
    if kind is MaxMin:
        return Layer(layer, 1.0, lambda size: torch.cat([torch.maximum(*size.chunk(2, dim=1))] * 2, dim=1))
    if kind is nn.Linear and isinstance(layer, nn.Linear):
        return Layer(layer, largest_singular_value(layer.weight), _absolute(layer), layer.weight.shape[1] + 1)
    if kind is nn.Conv2d and isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
        return Layer(layer, _convolution_norm(layer), _absolute(layer), layer.weight[0].numel() + 1)
    if kind is nn.MaxPool2d and isinstance(layer, nn.MaxPool2d) and not (layer.ceil_mode or layer.return_indices):
        return Layer(layer, math.sqrt(_windows(layer.kernel_size, layer.stride, layer.dilation)) * WIDER, layer)
    if kind is nn.AvgPool2d and isinstance(layer, nn.AvgPool2d):
        size = math.prod(_pair(layer.kernel_size))
        slope = math.sqrt(_windows(layer.kernel_size, layer.stride, 1) / size) * WIDER
        whole = not layer.ceil_mode and layer.divisor_override is None and not layer.padding
        return Layer(layer, slope, layer, size) if whole else None
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


def _absolute(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """The layer of the absolute values of its weights and biases."""
    absolute = copy.deepcopy(layer)
    for value in absolute.parameters():
        value.abs_()
    return absolute


def _convolution_norm(layer: nn.Conv2d) -> float:
    """At most the norm of a convolution W on images of any size.

    It is at most that of the kernel on one patch, times the root of how many patches an input is in. And its square,
    the largest eigenvalue of ``R = W^T W``, is at most ``max_i sum_j |R_ij| v_j / v_i`` for any positive numbers v of
    the channels, with ``|R_ij|`` summed over all offsets of two pixels (Schur's test); the same holds of ``W W^T``.
    Strides and zeros around an image take rows and columns away, and a dilated filter sees several images apart.
    """
    squares = list[float]()
    for part in layer.weight.chunk(layer.groups):
        patch = largest_singular_value(part.flatten(1)) ** 2
        windows = _windows(part.shape[2:], layer.stride, layer.dilation)  # as it is used, whatever it was made with
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


def _stretch(norm: float, inputs: int) -> float:
    """``||v||_2`` is at most so many times ``||v||``."""
    return math.sqrt(inputs) * WIDER if norm == math.inf else 1.0


def _windows(size: int | Sequence[int], stride: int | Sequence[int], dilation: int | Sequence[int]) -> int:
    """The largest number of windows that an input is in."""
    about = zip(_pair(size), _pair(stride), _pair(dilation), strict=True)
    return math.prod(k if d > 1 else math.ceil(k / s) for k, s, d in about)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


Metric = Literal["loss", "error"]
"""The names of the quantities that can be certified."""
Gammas = Sequence[float | None]
"""Prices of moves; None is a price at which nothing moves."""
Range = tuple[float, float]
"""The least and the largest number."""
Candidate = tuple[Tensor, Tensor]
"""Where the flat examples of a batch may go, and their values there."""


class Quantity(ABC):
    """What a certificate bounds, such as the expected loss.

    To certify something else, derive from this class, add the name to ``Metric`` and the class to ``QUANTITIES`` in
    ``quantities.py``. No other code knows which quantity it checks. A quantity is the mean of a value per example,
    and phi_gamma is the largest value less gamma times the cost of the move.
    """

    metric: ClassVar[Metric]
    """The name that users pass, and that a file holds."""
    noun: ClassVar[str]
    """The name in a sentence."""
    largest: ClassVar[float]
    """The largest possible value of an example; infinite if that depends on the bounds of the data."""
    needs_classes: ClassVar[bool]
    """Whether only classifiers have it."""
    has_points: ClassVar[bool]
    """Whether the points that an issuer may publish about each label are about it."""

    @property
    def needs_bounds(self) -> bool:
        """Whether statements about draws need the bounds of the data."""
        return math.isinf(self.largest)

    @abstractmethod
    def meaning(self, loss: str | None) -> str:
        """Explain the noun, in parentheses after a space; empty if nothing is known, such as the name of the loss."""

    @abstractmethod
    def check(self, model: Known, power: int, bounds: tuple[float, float] | None, confidence: float | None) -> None:
        """Raise PreconditionError with a remedy if nothing can be proven."""

    @abstractmethod
    def needs_gamma(self, power: int, radius: float) -> bool:
        """Return whether a row is proven at some gamma, and not by the loss at rest and its steepest slope."""

    @abstractmethod
    def gammas(self, model: Known, ball: Ball, x: Tensor, y: Tensor, share: Tensor, radius: float) -> Range:
        """Return the range of the best gamma for examples that have these shares of the mixture."""

    @abstractmethod
    def surrogates(self, model: Known, ball: Ball, outputs: Outputs, y: Tensor, gammas: Gammas, inputs: int) -> Tensor:
        """Return an upper bound on phi_gamma for each gamma and example, ``[G, n]``; infinite where there is none."""

    @abstractmethod
    def values(self, model: Known, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the value of each example, as an attack sees it."""

    @abstractmethod
    def candidates(self, target: Target) -> list[Candidate]:
        """Return where an attack may move examples."""


@dataclass(frozen=True)
class Ball:
    """What is certified, and where: the quantity, the ground norm and the power of its cost."""

    quantity: Quantity
    norm: float
    power: int

    def cost(self, length: float) -> float:
        return length**self.power


@dataclass(frozen=True)
class Target:
    """A batch of examples under attack, within a radius at the price gamma; None is a price at which nothing moves."""

    model: Known
    ball: Ball
    x: Tensor
    y: Tensor
    gamma: float | None
    radius: float
    start: Tensor
    """The examples as flat vectors, with a gradient if they may move."""
    outputs: Tensor
    """The outputs at the start."""

    def at(self, points: Tensor) -> Candidate:
        """Return a place of the flat examples with their values there."""
        with torch.no_grad():
            return points, self.ball.quantity.values(self.model, self.model.plain(points.view_as(self.x)), self.y)
