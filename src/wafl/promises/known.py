"""Define what the checker knows: models and how steep they are, certified quantities, and the ball.

A model is traced into a graph of plain layers in float64 (:mod:`wafl.tasks.structure.trace`). A layer that rescales
its weights becomes the plain layer of the rescaled weights in float64. The checker knows two things about a model. The
**outputs**, with a bound on the rounding of float64: a sum of n products is off by at most ``n u`` times the sum of
their sizes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1; ``u = 2^-53``), so if layer k sums
``n_k`` numbers, its output is off by at most ``u sum_k (n_k + 4)`` times its *size*, the result of the same layers
for ``|x|``, with ``|W|`` and ``|b|``. And the **slopes**: a margin ``s_j - s_y`` changes by at most ``K_yj ||x' -
x||``, with ``K_yj`` the norm of the difference of two rows of the last layer, times the slope of the layers before it.
The slopes of a chain are multiplied and the slopes of a sum are added. A concatenation has the root of the sum of their
squares.

The softplus of torch jumps down at its threshold. It is within that jump of a function without one, before and after a
move, so twice the effect of the jump on later layers is added to the error of the outputs.

The search of :mod:`wafl.theory` has separate classes: the checker shares only the tracer with it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from wafl.base.norms import dual, power_norm
from wafl.promises.layers import LEAST, MOST, UNIT, WIDER, Layer, constants_of, read_layer
from wafl.tasks.losses import CrossEntropy, MarginLoss, OutputLoss, claim_of, is_built_in
from wafl.tasks.structure.graph import Concat, NoGraphError, Sum
from wafl.tasks.structure.sequence import copied, is_same
from wafl.tasks.structure.trace import trace


@dataclass(frozen=True)
class Outputs:
    """The outputs ``[n, C]`` of a model, and the maximum error of each ``[n]``."""

    values: Tensor
    error: Tensor


@dataclass(frozen=True)
class Known:
    """A model that is a sequence of known layers, in float64, with a known loss."""

    layers: tuple[Layer, ...]
    last: Tensor
    """The weights of the last layer ``[C, H]``."""
    loss: OutputLoss

    @property
    def classifies(self) -> bool:
        """Whether the loss is for classes."""
        return isinstance(self.loss, CrossEntropy | MarginLoss)

    @property
    def margin(self) -> tuple[float, float]:
        """The u and t of the loss ``t CE((s - u e_y) / t)``."""
        return (self.loss.offset, self.loss.temperature) if isinstance(self.loss, MarginLoss) else (0.0, 1.0)

    @property
    def linear(self) -> bool:
        """Whether the outputs are an affine function of the flat input."""
        return all(type(layer.module) in (nn.Flatten, nn.Identity) for layer in self.layers[:-1])

    @property
    def at_once(self) -> int:
        """The number of examples per batch.

        It is small for images, because allocating memory would take half as long as convolving.
        """
        return 16 if any(isinstance(layer.module, nn.Conv2d) for layer in self.layers) else 2048

    def _values(self, x: Tensor, function: Callable[[Layer], Callable[..., Tensor]]) -> Tensor:
        values = [x]
        for layer in self.layers:
            values.append(function(layer)(*(values[index] for index in layer.inputs)))
        return values[-1]

    def plain(self, x: Tensor) -> Tensor:
        """Compute the outputs without error bounds."""
        return self._values(x, lambda layer: layer.module)

    def outputs(self, x: Tensor) -> Outputs:
        """Compute the outputs and their errors in two passes: one for the outputs, one for their sizes."""
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
        """Return the l2 slope of the layers before the last, by logarithms, because a product may underflow."""
        values: list[tuple[float, ...]] = [()]  # each is a product, by the logarithms of its factors
        for layer in self.layers[:-1]:
            parts, own = [values[index] for index in layer.inputs], math.log(max(layer.slope, LEAST))
            if len(parts) > 1:
                parts = [_joined(layer.module, [math.fsum(part) for part in parts])]
            values.append((*parts[0], own))
        log = math.fsum(values[self.layers[-1].inputs[0]])
        return max(math.exp(log), LEAST) * WIDER if log < 700.0 else math.inf

    def margins(self, norm: float, inputs: int) -> Tensor:
        """Return ``K [C (y), C (j)]`` for moves whose length is in this norm."""
        rows = self.last
        if self.linear:
            return torch.stack([power_norm(rows - row, dual(norm), 1) for row in rows]) * WIDER
        lengths = torch.stack([(rows - row).norm(dim=1) for row in rows]) * WIDER
        return lengths * self.before() * _stretch(norm, inputs)

    def widest(self, norm: float, inputs: int) -> float:
        """Return how far the outputs move at most, in l2, if the input moves by 1 in this norm."""
        rows = self.last
        each = float(power_norm(rows, dual(norm), 2).sum().sqrt())  # for each output alone
        whole = self.layers[-1].slope * _stretch(norm, inputs)
        if not self.linear:
            return whole * self.before() * WIDER
        column = float(rows.norm(dim=0).max())  # in l1 a corner of the ball is a single input
        return min(each, column if norm == 1 else whole) * WIDER


def in_float64(module: nn.Module) -> nn.Module:
    """Return a copy of a module that evaluates in float64 on the CPU."""
    return copied(module).cpu().double().eval().requires_grad_(False)


def known(module: nn.Module, loss: OutputLoss) -> Known | None:
    """Return the known model if every layer and the loss are known; otherwise None."""
    result = read(module, loss)
    return result if isinstance(result, Known) else None


def read(module: nn.Module, loss: OutputLoss) -> Known | str:
    """Return the known properties of a model and its loss, or the reason why there are none."""
    whole = in_float64(module)
    if not is_same(module, whole):
        return "it is compiled, or copies itself as another model"
    values = [*whole.parameters(), *(value for value in whole.buffers() if value.is_floating_point())]
    if not all(bool(value.isfinite().all()) for value in values):
        return "some of its weights are not finite"
    if not is_built_in(loss):
        claim = claim_of(loss)
        return f"the loss {loss.name} has no proof" if claim is None else f"{claim} is only a claim"
    layers: dict[nn.Module, Layer] = {}

    def supports(layer: nn.Module) -> bool:
        if layer not in layers and (result := read_layer(layer)) is not None:
            layers[layer] = result
        return layer in layers

    try:
        nodes = trace(whole, supports).nodes
    except NoGraphError as error:
        return str(error)
    chain = tuple(replace(layers[node.module], inputs=node.inputs) for node in nodes)
    sizes = [value.abs() for layer in chain for value in (*layer.module.parameters(), *constants_of(layer.module))]
    if not all(bool(((size == 0) | (size >= LEAST) & (size <= MOST)).all()) for size in sizes):
        return f"some of its weights are outside of {LEAST:g} to {MOST:g}"
    last = chain[-1].module
    return Known(chain, last.weight, loss) if isinstance(last, nn.Linear) else "it does not end with a linear layer"


def _joined(layer: nn.Module, logs: Sequence[float]) -> tuple[float, ...]:
    """Return the logarithm of the slope of a sum or of a concatenation, from the logarithms of its inputs' slopes."""
    power = 2.0 if isinstance(layer, Concat) else 1.0
    factors = [math.log(max(abs(layer.alpha), LEAST)) * index if isinstance(layer, Sum) else 0.0 for index in (0, 1)]
    logs = [log + factor for log, factor in zip(logs, [*factors, *[0.0] * len(logs)], strict=False)]
    top = max(logs)
    return (top + math.log(math.fsum(math.exp(power * (log - top)) for log in logs)) / power,)


def _stretch(norm: float, inputs: int) -> float:
    """Return the largest ratio of ``||v||_2`` to ``||v||``."""
    return math.sqrt(inputs) * WIDER if norm == math.inf else 1.0


Metric = Literal["loss", "error"]
"""The names of the quantities that can be certified."""
Gammas = Sequence[float | None]
"""Prices of moves; None is a price at which nothing moves."""
Range = tuple[float, float]
"""The smallest and the largest number."""
Candidate = tuple[Tensor, Tensor]
"""Possible positions of the flat examples of a batch, and the values there."""


class Quantity(ABC):
    """A quantity that a certificate bounds, such as the expected loss.

    To certify another quantity, derive from this class, add the name to ``Metric`` and the class to ``QUANTITIES`` in
    ``quantities.py``. No other code depends on the quantity. A quantity is the mean of a value per example,
    and phi_gamma is the largest value less gamma times the cost of the move.
    """

    metric: ClassVar[Metric]
    """The name that users pass, and that a file contains."""
    noun: ClassVar[str]
    """The name in a sentence."""
    largest: ClassVar[float]
    """The largest possible value of an example; infinite if that depends on the bounds of the data."""
    needs_classes: ClassVar[bool]
    """Whether it exists only for classifiers."""
    has_points: ClassVar[bool]
    """Whether the points that an issuer may publish about each label describe it."""

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
        """Return the value of each example, for an attack."""

    @abstractmethod
    def candidates(self, target: Target) -> list[Candidate]:
        """Return the positions to which an attack may move examples."""


@dataclass(frozen=True)
class Ball:
    """The certified quantity, the ground norm and the power of its cost."""

    quantity: Quantity
    norm: float
    power: int

    def cost(self, length: float) -> float:
        """Return the cost of a move of this length."""
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
        """Return these positions of the flat examples with their values."""
        with torch.no_grad():
            return points, self.ball.quantity.values(self.model.loss, self.model.plain(points.view_as(self.x)), self.y)
