"""Where an activation goes while its input stays within ``width`` of a center: between two secants, and in a strip.

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
    """Two parallel lines that an activation stays between: their slope, and how far each is from the center's value."""

    slope: Tensor
    low: Tensor
    high: Tensor


class Activation(ABC):
    """A function that never decreases, and nowhere faster than with the slope ``steepest``."""

    @property
    def steepest(self) -> float:
        return 1.0

    @abstractmethod
    def __call__(self, p: Tensor) -> Tensor: ...

    def turn(self, center: Tensor) -> Tensor:
        """What :meth:`secants` needs to know of a center at every width: by default the center alone."""
        return center

    @abstractmethod
    def secants(self, center: Tensor, turn: Tensor, width: Tensor) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def strip(self, center: Tensor, width: Tensor) -> Strip: ...


class Straight(Activation):
    """The identity, for layers without an activation."""

    def __call__(self, p: Tensor) -> Tensor:
        return p

    def secants(self, center: Tensor, turn: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones_like(center), torch.ones_like(center)

    def strip(self, center: Tensor, width: Tensor) -> Strip:
        return Strip(torch.ones_like(center), torch.zeros_like(center), torch.zeros_like(center))


class Hinge(Activation):
    """ReLU. It is convex, so secants from a point only become steeper from left to right."""

    def __call__(self, p: Tensor) -> Tensor:
        return p.clamp_min(0.0)

    def secants(self, center: Tensor, turn: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (_secant(self, center, center + side).clamp(0.0, 1.0) for side in (-width, width))
        return low, high

    def strip(self, center: Tensor, width: Tensor) -> Strip:
        return _strip(self, center, width, lambda slope: [torch.zeros_like(slope)])


@dataclass(frozen=True)
class SShaped(Activation):
    """``rise tanh(rate p)``, up to a constant: odd, convex below 0, concave above, and steepest there."""

    rise: float
    rate: float

    @property
    def steepest(self) -> float:
        return self.rise * self.rate

    def __call__(self, p: Tensor) -> Tensor:
        return self.rise * torch.tanh(self.rate * p)

    def slope(self, p: Tensor) -> Tensor:
        return self.rise * self.rate * (1.0 - torch.tanh(self.rate * p).square())

    def turn(self, center: Tensor) -> Tensor:
        """Seen from a center above 0, secants are steepest to the point below 0 where they are tangents.

        What is returned is a point between that and 0, where the slope is at least as large as that of any secant. As
        the function is odd, a center below 0 is mirrored.
        """
        center = center.abs()
        left, right = -center, torch.zeros_like(center)
        for _ in range(12):
            middle = (left + right) / 2.0
            above = self.slope(middle) >= _secant(self, center, middle)
            left, right = torch.where(above, left, middle), torch.where(above, middle, right)
        return right

    def secants(self, center: Tensor, turn: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """On both sides of the steepest secant, secants only become flatter."""
        center = center.abs()
        down, up = (_secant(self, center, center + side).clamp(0.0, self.steepest) for side in (-width, width))
        return torch.minimum(down, up), torch.where(center - width < turn, self.slope(turn), down)

    def strip(self, center: Tensor, width: Tensor) -> Strip:
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
    """Return the slope from the center to p; the steepest one if they are the same, perhaps only in float64."""
    run = p - center
    return torch.where(run == 0, f.steepest, (f(p) - f(center)) / torch.where(run == 0, 1.0, run))


def _strip(f: Activation, center: Tensor, width: Tensor, flat: Callable[[Tensor], list[Tensor]]) -> Strip:
    """As steep as the chord; ``flat`` says where f less a line of that slope may be largest or smallest."""
    low, high = center - width, center + width
    slope = _secant(f, low, high)
    ends = [low, high, *(torch.clamp(point, low, high) for point in flat(slope))]
    offsets = torch.stack([f(p) - f(center) - slope * (p - center) for p in ends])
    return Strip(slope, offsets.amin(0), offsets.amax(0))
