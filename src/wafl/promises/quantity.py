"""What the checker has to know about a certified quantity, and the ball in which it is certified.

The search of :mod:`wafl.theory` has classes of its own: the checker shares no code with it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from wafl.promises.known import Known, Outputs

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
