"""The ascent of a convex loss of linear outputs, with few steps.

Aitken, "On Bernoulli's numerical solution of algebraic equations" (1926), for each example by itself. The full step of
the fixed-point iteration never descends, but near the concavity limit it converges slowly: each step is then about
``ratio`` times the one before, so all that are still to come add up to ``ratio / (1 - ratio)`` times the last one.
After every four full steps the rest is taken at once; an example that would descend by it stays with its full steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from wafl.objectives.ball.ascent import not_lower
from wafl.objectives.capture import everywhere

TURN = 4
"""How many full steps are taken between two extrapolations: the first of them settle all but the slowest direction."""
LARGEST_RATIO = 0.98
"""The slowest convergence that is extrapolated in full."""


@dataclass(frozen=True)
class Spot:
    """A point ``[L, C, B]``, the point it aims at, the objective ``[L, B]``, and the squared length of its move."""

    point: Tensor
    aim: Tensor
    value: Tensor
    squared: Tensor


SpotT = TypeVar("SpotT", bound=Spot)


def accelerate(
    evaluate: Callable[[Tensor], SpotT],
    aim_at: Callable[[Tensor], Tensor],
    squared: Callable[[Tensor], Tensor],
    start: SpotT,
    steps: int,
    tolerance: float,
) -> tuple[SpotT, Tensor]:
    """The spot after at most so many full steps, and which examples have settled to within ``tolerance`` of a move."""
    at = start
    while True:
        settled = squared(at.aim - at.point) <= tolerance**2 * at.squared
        if steps <= 0 or everywhere(settled):
            return at, settled
        path = [at.aim]
        while len(path) < min(steps, TURN):
            path.append(aim_at(path[-1]))
        steps -= len(path)
        ahead = extrapolated(path) if len(path) == TURN else path[-1]
        at = _climbed(evaluate, at, torch.where(settled[:, None], at.point, ahead), path[-1])


def extrapolated(path: list[Tensor]) -> Tensor:
    """Where the path leads to, judged by its last three points; where it does not converge, its last point."""
    before, last = path[-2] - path[-3], path[-1] - path[-2]
    ratio = (last * before).sum(1) / before.square().sum(1)
    ratio = torch.where(ratio < 1.0, ratio, 0.0).clamp_(0.0, LARGEST_RATIO)  # steps that grow lead away from it
    return torch.addcmul(path[-1], last, (ratio / (1.0 - ratio))[:, None])


def _climbed(evaluate: Callable[[Tensor], SpotT], at: SpotT, ahead: Tensor, full: Tensor) -> SpotT:
    """The spot ahead; for an example that is lower there, the one at ``full``, where full steps have led."""
    trial = evaluate(ahead)
    climbs = not_lower(trial.value, at.value)
    if everywhere(climbs):
        return trial
    trial = evaluate(torch.where(climbs[:, None], ahead, full))
    # If the supremum is infinite, an example stays where further steps would overflow.
    return _chosen(torch.isfinite(trial.value), trial, at)


def _chosen(mask: Tensor, new: SpotT, old: SpotT) -> SpotT:
    """The new spot where the mask ``[L, B]`` is true, otherwise the old one."""

    def pick(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(mask if one.ndim == 2 else mask[:, None], one, other)

    return replace(new, **{part.name: pick(getattr(new, part.name), getattr(old, part.name)) for part in fields(new)})
