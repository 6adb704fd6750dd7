"""Solve the inner maximization by a damped fixed-point iteration, for every ground norm.

Linearized at the current point, ``max <g, d> - gamma ||d||^p`` has a closed form for each norm (``linear_maximizer``).
The solver moves part of the way there,

    d <- d + a (linear_maximizer(g(d)) - d),

which for the squared l2 cost is gradient ascent with step ``a / (2 gamma)``. For a loss that is convex in x, the full
step (a = 1) never lowers the objective: the linearized objective lies below the true one and touches it at d, and the
step ends at its maximum. A linear model therefore needs no line search (``class_space.py``); otherwise a is found for
each example (``backtrack``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from wafl.base.norms import power_norm
from wafl.objectives.ball.staircase import crossing
from wafl.objectives.capture import everywhere


@dataclass(frozen=True)
class Room:
    """The distances that each coordinate may move down and up before it leaves the bounds."""

    down: Tensor
    up: Tensor

    @classmethod
    def within(cls, x: Tensor, bounds: tuple[float, float]) -> Self:
        """Return the room of examples in a box, whose ends may be infinite; the room itself is always finite."""
        most = torch.finfo(x.dtype).max
        return cls((x - bounds[0]).clamp_max(most), (bounds[1] - x).clamp_max(most))

    def clip(self, delta: Tensor) -> Tensor:
        """Return the move, limited to the room."""
        return torch.maximum(torch.minimum(delta, self.up), -self.down)

    def along(self, direction: Tensor) -> Tensor:
        """Return the distance that each coordinate may move in its direction."""
        if direction.is_cuda:
            return torch.where(direction >= 0, self.up, self.down)
        up = torch.ge(direction, 0.0, out=torch.empty_like(direction))  # on a CPU, booleans take four times as long
        return torch.lerp(self.down, self.up, up)  # an end, to the bit


def linear_maximizer(
    gradient: Tensor, gamma: Tensor, norm: float, power: int, room: Room | None = None, near: Tensor | None = None
) -> Tensor:
    """Return ``argmax <g, d> - gamma ||d||^power`` over d within ``room``; ``gradient [L, B, D]``, ``gamma [L]``.

    Without a room and with power 2 this is ``(||g||_* / 2 gamma) v``, where v is the unit vector of the norm that
    maximizes ``<g, v>``. With power 1 it is finite only within a room. The maximizer of a similar gradient, ``near``,
    saves time and changes no bit.
    """
    if power == 1 and room is None:
        raise ValueError("power=1 has no finite linear maximizer without bounds")
    if norm == 2:
        return _l2_maximizer(gradient, gamma, power, room)
    near = None if gradient.is_cuda else near
    size = gradient.abs()
    if room is None:
        return gradient.sign() * _free_lengths(size, gamma, norm)
    space = room.along(gradient)
    if norm == 1:
        return gradient.sign() * _l1_lengths(size, space, gamma, power, near)
    return gradient.sign() * torch.minimum(_linf_level(size, space, gamma, power, near), space)


def _free_lengths(size: Tensor, gamma: Tensor, norm: float) -> Tensor:
    """Return the lengths without bounds and with power 2: one coordinate for l1, all coordinates alike for l_inf."""
    price = 2.0 * gamma[:, None, None]
    if norm == math.inf:
        return size.sum(-1, keepdim=True) / price
    length, coordinate = size.max(-1, keepdim=True)
    return torch.zeros_like(size).scatter(-1, coordinate, length / price)


def _l2_maximizer(gradient: Tensor, gamma: Tensor, power: int, room: Room | None) -> Tensor:
    if power == 2:
        delta = gradient / (2.0 * gamma[:, None, None])
        return room.clip(delta) if room is not None else delta
    assert room is not None
    # A free coordinate satisfies g = gamma d / ||d||, so d = clip(t g) with t = ||d|| / gamma. Bisection from the
    # largest useful t down finds the largest fixed point.
    low = torch.zeros_like(gradient[..., :1])
    high = power_norm(room.along(gradient), 2, 1)[..., None] / gamma[:, None, None]
    for _ in range(60):
        middle = (low + high) / 2.0
        longer = power_norm(room.clip(middle * gradient), 2, 1)[..., None] / gamma[:, None, None] > middle
        low, high = torch.where(longer, middle, low), torch.where(longer, high, middle)
    return room.clip(high * gradient)


def _l1_lengths(size: Tensor, space: Tensor, gamma: Tensor, power: int, near: Tensor | None) -> Tensor:
    """Spend the total length on the steepest coordinates first, each up to its bound.

    The next unit of length gains its coordinate's ``|g|`` and costs ``2 gamma total`` (power 2) or ``gamma`` (power 1);
    spending stops where the cost reaches the gain.
    """
    price = gamma[:, None, None]
    if power == 1:
        return torch.where(size > price, space, 0.0)
    flattest = None
    if near is not None:  # the size of the flattest coordinate that has moved there
        still = torch.ne(near, 0.0, out=torch.empty_like(near)).reciprocal_().sub_(1.0)
        flattest = still.add_(size).amin(-1, keepdim=True)
    slope = crossing(size, space, 2.0 * price, lambda total, price: price * total, flattest)
    full = torch.gt(size, slope, out=torch.empty_like(size)).mul_(space)
    marginal = torch.eq(size, slope, out=torch.empty_like(size)).mul_(space)  # one coordinate, or several equally steep
    rest = slope / (2.0 * price) - full.sum(-1, keepdim=True)
    return full + torch.minimum((rest - (marginal.cumsum(-1) - marginal)).clamp_min(0.0), marginal)


def _linf_level(size: Tensor, space: Tensor, gamma: Tensor, power: int, near: Tensor | None) -> Tensor:
    """Raise all coordinates together; a coordinate at its bound stops gaining."""
    price = gamma[:, None, None]
    if power == 1:
        return crossing(space, size, price, lambda gain, price: torch.where(gain > price, math.inf, 0.0).to(gain))
    level = None if near is None else power_norm(near, math.inf, 1)[..., None]
    return crossing(space, size, 2.0 * price, lambda gain, price: gain / price, level)


def backtrack(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    aim_at: Callable[[Tensor], Tensor],
    length: Callable[[Tensor], Tensor],
    start: Tensor,
    origin: Tensor,
    steps: int,
    tolerance: float,
    feature_dim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Iterate to the fixed point with a separate damping for each example, halved whenever a step would descend.

    Returns the last points, their objective, and which examples have converged. Points are ``[L, B, D]``
    (``feature_dim`` 2) or ``[L, C, B]`` (1). ``evaluate(point)`` returns the objective and the input with which
    ``aim_at`` finds the linear maximizer; ``length`` returns the size of a move. An example that has converged, to
    within ``tolerance`` of its distance from the origin, is frozen individually.
    """
    point, (value, slope) = start, evaluate(start)
    damping = torch.ones_like(value)
    aim = aim_at(slope)
    settled = torch.zeros_like(value, dtype=torch.bool)
    at_hand = start.device.type == "cpu"  # elsewhere, asking whether all climb takes longer than choosing among them
    for _ in range(steps):
        if tolerance > 0:
            settled = settled | close(length(aim - point), tolerance, length(aim - origin))
            if everywhere(settled):
                break
        trial = torch.lerp(point, aim, damping.unsqueeze(feature_dim))
        trial_value, slope = evaluate(trial)
        climbs = not_lower(trial_value, value) & ~settled
        if at_hand and bool(climbs.all()):
            point, value, aim = trial, trial_value, aim_at(slope)
            continue
        point = torch.where(climbs.unsqueeze(feature_dim), trial, point)
        value = torch.where(climbs, trial_value, value)
        aim = torch.where(climbs.unsqueeze(feature_dim), aim_at(slope), aim)
        damping = torch.where(climbs | settled, damping, damping / 2.0)
    settled = settled | close(length(aim - point), settling(tolerance, value), length(aim - origin))
    return point, value, settled


def not_lower(trial: Tensor, value: Tensor) -> Tensor:
    """Return whether each trial is at least as high as the value, up to rounding.

    Near the maximum, steps that change only rounding must be accepted.
    """
    return trial >= value - 4.0 * torch.finfo(value.dtype).eps * value.abs().clamp_min(1.0)


def close(left: Tensor, tolerance: float, whole: Tensor) -> Tensor:
    """Return whether the remaining length is within the tolerance of the whole, finite length."""
    return (left <= tolerance * whole) & (whole < math.inf)


def settling(tolerance: float, like: Tensor) -> float:
    """Return the tolerance at which an example counts as converged; positive even if ``tolerance`` is 0."""
    return tolerance if tolerance > 0 else math.sqrt(torch.finfo(like.dtype).eps)
