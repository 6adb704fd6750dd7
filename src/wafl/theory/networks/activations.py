"""Bound an activation while its input stays within ``width`` of a center: between two secants, and in a strip.

With f the activation, c the center and every p within ``width`` of it, *secants* are numbers ``low <= high`` with
``f(p) - f(c) = s (p - c)`` for an s between them, and a *strip* is a slope and two offsets with
``f(p) - f(c)`` between ``slope (p - c) + low`` and ``slope (p - c) + high``. Secants are exact at the center; a strip
is narrow where f saturates. All functions are elementwise.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Strip:
    """Two parallel lines that enclose an activation: their slope, and the offset of each from the center's value."""

    slope: Tensor
    low: Tensor
    high: Tensor


class Activation(ABC):
    """A function that never decreases, with slopes of at most ``steepest``."""

    @property
    def steepest(self) -> float:
        """The largest slope."""
        return 1.0

    @abstractmethod
    def __call__(self, p: Tensor) -> Tensor:
        """Compute the activation."""

    def turn(self, center: Tensor) -> Tensor:
        """Return the center's data for :meth:`secants` at every width: by default the center itself."""
        return center

    @abstractmethod
    def secants(self, center: Tensor, turn: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Return the least and the largest slope of the secants from the center."""

    @abstractmethod
    def strip(self, center: Tensor, width: Tensor) -> Strip:
        """Return a strip around the activation."""


class Straight(Activation):
    """The identity, for layers without an activation."""

    def __call__(self, p: Tensor) -> Tensor:
        """Return the input."""
        return p

    def secants(self, center: Tensor, turn: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Return slopes of 1."""
        return torch.ones_like(center), torch.ones_like(center)

    def strip(self, center: Tensor, width: Tensor) -> Strip:
        """Return the line itself."""
        return Strip(torch.ones_like(center), torch.zeros_like(center), torch.zeros_like(center))


class Hinge(Activation):
    """ReLU. It is convex, so secants from a point only become steeper from left to right."""

    def __call__(self, p: Tensor) -> Tensor:
        """Compute ``max(p, 0)``."""
        return p.clamp_min(0.0)

    def secants(self, center: Tensor, turn: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slopes to both ends of the interval."""
        low, high = (_secant(self, center, center + side).clamp(0.0, 1.0) for side in (-width, width))
        return low, high

    def strip(self, center: Tensor, width: Tensor) -> Strip:
        """Return the strip, with a possible extreme at 0."""
        return _strip(self, center, width, lambda slope: [torch.zeros_like(slope)])


@dataclass(frozen=True)
class SShaped(Activation):
    """The function ``rise tanh(rate p)``, up to a constant: odd, convex below 0, concave above, and steepest there."""

    rise: float
    rate: float

    @property
    def steepest(self) -> float:
        """The slope at 0."""
        return self.rise * self.rate

    def __call__(self, p: Tensor) -> Tensor:
        """Compute ``rise tanh(rate p)``."""
        return self.rise * torch.tanh(self.rate * p)

    def slope(self, p: Tensor) -> Tensor:
        """Return the derivative."""
        return self.rise * self.rate * (1.0 - torch.tanh(self.rate * p).square())

    def turn(self, center: Tensor) -> Tensor:
        """Return a point between 0 and the point of the steepest secant from the center.

        From a center above 0, secants are steepest to the point below 0 where they are tangents. The returned point
        lies between that point and 0, where the slope is at least as large as any secant's. As the function is odd, a
        center below 0 is mirrored.
        """
        center = center.abs()
        left, right = -center, torch.zeros_like(center)
        for _ in range(12):
            middle = (left + right) / 2.0
            above = self.slope(middle) >= _secant(self, center, middle)
            left, right = torch.where(above, left, middle), torch.where(above, middle, right)
        return right

    def secants(self, center: Tensor, turn: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slopes; on both sides of the steepest secant, secants only become flatter."""
        center = center.abs()
        down, up = (_secant(self, center, center + side).clamp(0.0, self.steepest) for side in (-width, width))
        return torch.minimum(down, up), torch.where(center - width < turn, self.slope(turn), down)

    def strip(self, center: Tensor, width: Tensor) -> Strip:
        """Return the strip, with possible extremes where the slope equals the chord's."""

        def flat(slope: Tensor) -> list[Tensor]:
            # Where the slope is a part q of the steepest, 1 / cosh^2 is q. A form with 1 - q would lose a small q.
            part = (slope / self.steepest).clamp(0.0, 1.0)
            point = torch.acosh(part.rsqrt()) / self.rate
            return [point, -point]

        return _strip(self, center, width, flat)


KNOWN: dict[type[nn.Module], Activation] = {
    nn.ReLU: Hinge(),
    nn.Tanh: SShaped(1.0, 1.0),
    nn.Sigmoid: SShaped(0.5, 0.5),
}


def _secant(f: Activation, center: Tensor, p: Tensor) -> Tensor:
    """Return the slope from the center to p, or the steepest slope if they are equal, perhaps only in float64."""
    run = p - center
    return torch.where(run == 0, f.steepest, (f(p) - f(center)) / torch.where(run == 0, 1.0, run))


def _strip(f: Activation, center: Tensor, width: Tensor, flat: Callable[[Tensor], list[Tensor]]) -> Strip:
    """Return a strip as steep as the chord; ``flat`` returns the possible extremes of f less a line of that slope."""
    low, high = center - width, center + width
    slope = _secant(f, low, high)
    ends = [low, high, *(torch.clamp(point, low, high) for point in flat(slope))]
    offsets = torch.stack([f(p) - f(center) - slope * (p - center) for p in ends])
    return Strip(slope, offsets.amin(0), offsets.amax(0))
