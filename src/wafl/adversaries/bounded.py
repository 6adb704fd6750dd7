"""Adversaries inside a ball of radius epsilon around each example: PGM and FGSM.

Madry et al., "Towards deep learning models resistant to adversarial attacks" (ICLR 2018);
Goodfellow et al., "Explaining and harnessing adversarial examples" (ICLR 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from wafl.adversaries.base import AdversaryState, Move, better, example_draws, lane_key, lane_scalar
from wafl.core.checks import check_bounds, check_inside
from wafl.core.inputs import Inputs, dense
from wafl.core.norms import power_norm
from wafl.core.random import Key, normal, uniform
from wafl.core.task import Problem


@dataclass(frozen=True)
class BoundedAscent:
    """See :func:`pgm` and :func:`fgsm`."""

    epsilon: float
    step_size: float | None = None
    steps: int = 1
    norm: float = math.inf
    random_start: bool = False
    restarts: int = 1
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (self.epsilon >= 0 and math.isfinite(self.epsilon)):
            raise ValueError(f"epsilon={self.epsilon} must be finite and at least 0, in the units of the data")
        if self.step_size is not None and not (self.step_size > 0 and math.isfinite(self.step_size)):
            raise ValueError(f"step_size={self.step_size} must be positive and finite")
        if self.steps < 1 or self.restarts < 1:
            raise ValueError(f"steps={self.steps} and restarts={self.restarts} must be at least 1")
        if self.norm not in (2, math.inf):
            raise ValueError(f"norm={self.norm} must be 2 or inf")
        if self.restarts > 1 and not self.random_start:
            raise ValueError(f"restarts={self.restarts} without random_start=True would repeat the same ascent")
        object.__setattr__(self, "bounds", check_bounds(self.bounds))

    def scalars(self) -> dict[str, float]:
        if self.step_size is not None:
            return {"epsilon": self.epsilon, "step_size": self.step_size}
        # One step goes to the surface; several can together cross the whole ball.
        return {"epsilon": self.epsilon, "step_size": self.epsilon * (1.0 if self.steps == 1 else 2.5 / self.steps)}

    def initial_memory(self, input_shape: tuple[int, ...]) -> None:
        return None

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: AdversaryState | None = None) -> Move:
        x, state = dense(x), state or AdversaryState()
        flat = x.flatten(2)
        check_inside(flat, self.bounds)
        epsilon, step_size = (
            lane_scalar(state, name, value, x)[:, None, None] for name, value in self.scalars().items()
        )
        starts = self._starts(flat, epsilon, lane_key(state, x)) if self.random_start else [torch.zeros_like(flat)]
        moves = [self._ascend(problem, x, y, start, epsilon, step_size) for start in starts]
        return replace(reduce(better, moves), state=state)

    def _ascend(
        self, problem: Problem, x: Tensor, y: Tensor, delta: Tensor, epsilon: Tensor, step_size: Tensor
    ) -> Move:
        flat = x.flatten(2)
        delta = self._project(flat, delta, epsilon)
        for _ in range(self.steps):
            gradient = problem.gradient((flat + delta).view_as(x), y).flatten(2)
            delta = self._project(flat, delta + step_size * self._direction(gradient), epsilon)
        x_adv = (flat + delta).view_as(x)
        if self.bounds is not None:
            x_adv = x_adv.clamp(*self.bounds)
        cost = power_norm(delta, self.norm, 2)
        value = problem.loss(x_adv, y)
        return Move(x_adv, y, value, cost, torch.ones_like(value, dtype=torch.bool))

    def _direction(self, gradient: Tensor) -> Tensor:
        if self.norm == math.inf:
            return gradient.sign()
        length = power_norm(gradient, 2, 1)[..., None]
        return gradient / torch.where(length > 0, length, 1.0)

    def _project(self, flat: Tensor, delta: Tensor, epsilon: Tensor) -> Tensor:
        if self.norm == math.inf:
            delta = torch.maximum(torch.minimum(delta, epsilon), -epsilon)
        else:
            length = power_norm(delta, 2, 1)[..., None]
            delta = delta * (epsilon / torch.where(length > 0, length, 1.0)).clamp_max(1.0)
        if self.bounds is not None:
            delta = (flat + delta).clamp(*self.bounds) - flat
        return delta

    def _starts(self, flat: Tensor, epsilon: Tensor, key: Key) -> list[Tensor]:
        """One point a restart, uniform in the ball."""
        lanes, batch, features = flat.shape
        if self.norm == math.inf:
            draws = example_draws(uniform, key, batch, self.restarts * features).to(flat)
            starts = draws.unflatten(-1, (self.restarts, features)).expand(lanes, -1, -1, -1).unbind(2)
            return [epsilon * (2.0 * start - 1.0) for start in starts]
        # The extra column gives the radius its distribution.
        draws = example_draws(normal, key, batch, self.restarts * (features + 1)).to(flat)
        starts = draws.unflatten(-1, (self.restarts, features + 1)).expand(lanes, -1, -1, -1).unbind(2)
        levels = [torch.special.ndtr(start[..., -1:]) ** (1.0 / features) for start in starts]
        return [epsilon * level * self._direction(start[..., :-1]) for level, start in zip(levels, starts, strict=True)]


def pgm(
    *,
    epsilon: float,
    step_size: float | None = None,
    steps: int = 10,
    norm: float = math.inf,
    random_start: bool = False,
    bounds: tuple[float, float] | None = None,
) -> BoundedAscent:
    """Projected gradient ascent within ``||x_adv - x|| <= epsilon``.

    Without ``step_size`` it is ``2.5 epsilon / steps``, so that the steps can cross the whole ball.
    """
    return BoundedAscent(epsilon, step_size, steps, norm, random_start, 1, bounds)


def fgsm(*, epsilon: float, norm: float = math.inf, bounds: tuple[float, float] | None = None) -> BoundedAscent:
    """One gradient step to the surface of the ball of radius epsilon."""
    return BoundedAscent(epsilon, None, 1, norm, False, 1, bounds)
