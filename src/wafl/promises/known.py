"""What the checker has to know: models and how steep they are, certified quantities, and the ball.

A model is traced into a graph of plain layers in float64 (:mod:`wafl.tasks.graph`); a layer that rescales its weights
is the plain layer of those that it uses, as float64 gives them. Two things are known of it. The **outputs**, with a
bound on what float64 has lost: a sum of n products is off by at most ``n u`` times the sum of their sizes (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1; ``u = 2^-53``), so if layer k sums ``n_k`` numbers, what it
computes is off by at most ``u sum_k (n_k + 4)`` times its *size*, which is what the same layers give for ``|x|``, with
``|W|`` and ``|b|``. And the **slopes**: a margin ``s_j - s_y`` changes by at most ``K_yj ||x' - x||``, with ``K_yj``
the norm of the difference of two rows of the last layer, times the slope of what comes before it. The slopes of a
chain are multiplied and those of a sum are added. A concatenation has the root of the sum of their squares.

The softplus of torch jumps down at its threshold. It is within that jump of a function without one, before and after a
move, so twice what later layers make of the jump is added to the error of the outputs.

The search of :mod:`wafl.theory` has classes of its own: the checker shares only the tracer with it.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from wafl.base.norms import dual, power_norm
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear
from wafl.tasks.graph import Concat, NoGraphError, Plus, Sum, Times, trace
from wafl.tasks.losses import CrossEntropy, MarginLoss, OutputLoss, SquaredError
from wafl.tasks.rescaling import make_plain
from wafl.tasks.structure.sequence import is_patched, is_same

UNIT = 2.0**-53
WIDER = 1.0 + 2.0**-30
"""Norms are made larger by this factor: the singular values of a matrix are off by far less."""
LEAST, MOST = 1e-100, 1e100
"""Sizes of weights that are not 0: the squares of others are lost, and with them how steep a network is."""
STEPS = 50
"""How often the weights of the bound on a convolution's norm are improved."""
MANY = 2**20
"""The most pixels that are averaged: their number bounds the rounding error of a mean."""
RESCALED = (LipschitzLinear, LipschitzConv2d, NormalizedLinear)
KEEPING = (nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelUnshuffle)
"""Layers that put the same numbers into another order."""
SLOPES: dict[type[nn.Module], float] = {nn.ReLU: 1.0, nn.Tanh: 1.0, nn.Sigmoid: 0.25, nn.SiLU: 1.1, nn.GELU: 1.13}
"""How steep activations are; for all but the sigmoid, ``|a(z)|`` is at most this times ``|z|``, too."""


@dataclass(frozen=True)
class Layer:
    """What is known of a layer: its l2 slope, what it makes of its inputs' sizes, and how many numbers it sums."""

    module: nn.Module
    slope: float
    sizes: Callable[..., Tensor]
    summed: int = 0
    jump: float = 0.0
    """How far it is at most from a function with this slope, in each number."""
    raises: float | None = None
    """How much it raises the largest change of a number at most; None if that is the slope."""
    inputs: tuple[int, ...] = ()
    """The indices of the values that it takes: 0 is the input of the model, and k what layer k - 1 returns."""


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

    def _values(self, x: Tensor, function: Callable[[Layer], Callable[..., Tensor]]) -> Tensor:
        values = [x]
        for layer in self.layers:
            values.append(function(layer)(*(values[index] for index in layer.inputs)))
        return values[-1]

    def plain(self, x: Tensor) -> Tensor:
        return self._values(x, lambda layer: layer.module)

    def outputs(self, x: Tensor) -> Outputs:
        """Two passes: one for the outputs, one for their sizes."""
        with torch.no_grad():
            values, size = self.plain(x), self._values(x.abs(), lambda layer: layer.sizes)
        lost = 2.0 * UNIT * sum(layer.summed + 4 for layer in self.layers) * size.amax(1)
        return Outputs(values, lost + self._jumps() if any(layer.jump for layer in self.layers) else lost)

    def _jumps(self) -> float:
        """Return twice the most that jumps change an output."""
        values = [0.0]
        for layer in self.layers:
            inputs, alpha = [values[index] for index in layer.inputs], getattr(layer.module, "alpha", 1.0)
            raised = inputs[0] + abs(alpha) * inputs[1] if isinstance(layer.module, Sum) else max(inputs)
            values.append((raised * (layer.slope if layer.raises is None else layer.raises) + layer.jump) * WIDER)
        return 2.0 * values[-1]

    def before(self) -> float:
        """The l2 slope of what comes before the last layer; by logarithms, as a product may be lost on its way."""
        values: list[tuple[float, ...]] = [()]  # each is a product, by the logarithms of its factors
        for layer in self.layers[:-1]:
            parts, own = [values[index] for index in layer.inputs], math.log(max(layer.slope, LEAST))
            if len(parts) > 1:
                parts = [_joined(layer.module, [math.fsum(part) for part in parts])]
            values.append((*parts[0], own))
        log = math.fsum(values[self.layers[-1].inputs[0]])
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
    result = read(module, loss)
    return result if isinstance(result, Known) else None


def read(module: nn.Module, loss: OutputLoss) -> Known | str:
    """Return what is known of a model and its loss, or the reason why nothing is."""
    whole = copy.deepcopy(module).cpu().double().eval().requires_grad_(False)
    if not is_same(module, whole):
        return "it is compiled, or copies itself as another model"
    values = [*whole.parameters(), *(value for value in whole.buffers() if value.is_floating_point())]
    if not all(bool(value.isfinite().all()) for value in values):
        return "some of its weights are not finite"
    if type(loss) not in (CrossEntropy, MarginLoss, SquaredError):
        return f"the loss {loss.name} has no proof"
    layers: dict[nn.Module, Layer] = {}

    def supports(layer: nn.Module) -> bool:
        if layer not in layers and (result := _read(layer)) is not None:
            layers[layer] = result
        return layer in layers

    try:
        nodes = trace(whole, supports).nodes
    except NoGraphError as error:
        return str(error)
    chain = tuple(replace(layers[node.module], inputs=node.inputs) for node in nodes)
    sizes = [value.abs() for layer in chain for value in (*layer.module.parameters(), *_constants(layer.module))]
    if not all(bool(((size == 0) | (size >= LEAST) & (size <= MOST)).all()) for size in sizes):
        return f"some of its weights are outside of {LEAST:g} to {MOST:g}"
    last = chain[-1].module
    return Known(chain, last.weight, loss) if isinstance(last, nn.Linear) else "it does not end with a linear layer"


def _constants(layer: nn.Module) -> list[Tensor]:
    """Return the numbers that a layer has besides its parameters."""
    return [_factor(layer)] if isinstance(layer, NORMALIZING) else list(layer.buffers())


def _joined(layer: nn.Module, logs: Sequence[float]) -> tuple[float, ...]:
    """Return the logarithm of the slope of a sum or of a concatenation, from the logarithms of its inputs' slopes."""
    power = 2.0 if isinstance(layer, Concat) else 1.0
    factors = [math.log(max(abs(layer.alpha), LEAST)) * index if isinstance(layer, Sum) else 0.0 for index in (0, 1)]
    logs = [log + factor for log, factor in zip(logs, [*factors, *[0.0] * len(logs)], strict=False)]
    top = max(logs)
    return (top + math.log(math.fsum(math.exp(power * (log - top)) for log in logs)) / power,)


NORMALIZING = (nn.BatchNorm1d, nn.BatchNorm2d)


def _factor(layer: nn.BatchNorm1d | nn.BatchNorm2d) -> Tensor:
    """Return what a normalization multiplies each channel by, in absolute value."""
    assert layer.running_var is not None
    factor = (layer.running_var + layer.eps).rsqrt()
    return factor if layer.weight is None else factor * layer.weight.abs()  # pyright: ignore[reportUnnecessaryComparison]


def _is_plain(module: nn.Module) -> bool:
    """Return whether a layer computes what its kind computes; the tracer has looked for hooks and replaced methods.

    Weights that are neither parameters nor buffers are in no digest, and few known layers have buffers.
    """
    buffers = vars(module).get("_buffers")
    return not is_patched(type(module)) and (not buffers or type(module) in (*NORMALIZING, Times, Plus))


def _read(layer: nn.Module) -> Layer | None:
    """What is known of a layer; None if that is nothing. Subclasses may compute anything, so kinds are compared."""
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
    """The sizes of ``(x - mean) w / sqrt(var + eps) + b``, whose terms do not cancel."""
    absolute = copy.deepcopy(layer)
    assert absolute.running_mean is not None
    absolute.running_mean = -absolute.running_mean.abs()
    for value in absolute.parameters():
        value.abs_()
    return absolute


def _absolute(layer: nn.Linear | nn.Conv2d | Times | Plus) -> nn.Module:
    """The layer of the absolute values of its weights and biases."""
    absolute = copy.deepcopy(layer)
    for value in (*absolute.parameters(), *absolute.buffers()):
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
    def values(self, loss: OutputLoss, outputs: Tensor, y: Tensor) -> Tensor:
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
            return points, self.ball.quantity.values(self.model.loss, self.model.plain(points.view_as(self.x)), self.y)
