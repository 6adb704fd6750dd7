"""Objectives inside a ball of radius epsilon around each example: PGM and FGSM."""

import math
from dataclasses import replace
from functools import reduce
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.bounds import DATA, Bounds, check_bounds
from wafl.base.checks import check_space
from wafl.base.norms import power_norm, typical_length
from wafl.base.options import Box, Choice, Count, Positive, Range, Tunable, frozen, maker
from wafl.base.random import Key, normal, uniform
from wafl.objectives.base import (
    Move,
    Objective,
    ObjectiveState,
    Term,
    better,
    example_draws,
    lane_key,
    lane_scalar,
    move_at_layer,
)
from wafl.objectives.capture import check_inside
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem


@frozen
class BoundedAscent(Objective):
    """One gradient step to the surface of the ball of radius epsilon (FGSM)."""

    epsilon: Annotated[
        float,
        Range(0.0, hint=", in the units of the data"),
        Tunable(comparable=typical_length),
        "The radius of the ball, in the units of the data.",
    ] = 0.1
    norm: Annotated[float, Choice((2, math.inf)), Tunable(), "The norm of the ball: 2 or inf."] = math.inf
    bounds: Annotated[
        Bounds, Box(), "Where moved examples must stay: 'data' (what the data declare), a box, or none (anywhere)."
    ] = DATA
    space: Annotated[
        str | None, "The name of the layer whose output is moved instead of the inputs, which may be integers."
    ] = None
    random_start = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bounds", check_bounds(self.bounds))
        check_space(self.space, self.bounds)

    def scalars(self) -> dict[str, float]:
        return {"epsilon": self.epsilon, "step_size": self.epsilon}

    @property
    def reach(self) -> tuple[str, float, float] | None:
        return "epsilon", self.epsilon, self.norm

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        if self.space is not None:
            return move_at_layer(replace(self, space=None), self.space, problem, x, y, state)
        x, state = dense(x), state or ObjectiveState()
        flat = x.flatten(2)
        check_inside(flat, self.box)
        epsilon, step_size = (
            lane_scalar(state, name, value, x)[:, None, None] for name, value in self.scalars().items()
        )
        starts = self._starts(flat, epsilon, lane_key(state, x)) if self.random_start else [torch.zeros_like(flat)]
        moves = (self._ascend(problem, x, y, start, epsilon, step_size) for start in starts)
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
        if self.box is not None:
            x_adv = x_adv.clamp(*self.box)
        cost = power_norm(delta, self.norm, 2)
        there = problem.forward(x_adv)
        value = problem.loss(there, y)
        return Move(there, y, value, cost, torch.ones_like(value, dtype=torch.bool))

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
        if self.box is not None:
            delta = (flat + delta).clamp(*self.box) - flat
        return delta

    def _starts(self, flat: Tensor, epsilon: Tensor, key: Key) -> list[Tensor]:
        """One point per restart, uniform in the ball."""
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


@frozen
class ProjectedAscent(BoundedAscent):
    """Projected gradient ascent within ``||x_adv - x|| <= epsilon`` (PGM)."""

    step_size: Annotated[
        float | None,
        Positive(),
        "The length of a step; by default 2.5 epsilon / steps, which crosses the ball, and epsilon for a single step.",
    ] = None
    steps: Annotated[int, Count(), "The number of steps of the ascent."] = 10
    random_start: Annotated[bool, "Start at a random point of the ball."] = False
    restarts: Annotated[int, Count(), "The number of random starts, of which each example keeps the best."] = 1
    share: Annotated[
        float,
        Range(0, 1),
        "The share of the loss that is taken at moved examples; the rest is at the examples themselves.",
    ] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restarts > 1 and not self.random_start:
            raise ValueError(f"restarts={self.restarts} without random_start=True would repeat the same ascent")

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        move = super().__call__(problem, x, y, state)
        return move if self.share == 1 else blended(move, problem, dense(x), y, self.share)

    def scalars(self) -> dict[str, float]:
        step = self.epsilon * (1.0 if self.steps == 1 else 2.5 / self.steps)
        return {"epsilon": self.epsilon, "step_size": step if self.step_size is None else self.step_size}


def blended(move: Move, problem: Problem, x: Tensor, y: Tensor, share: float) -> Move:
    """The move with ``(1 - share) loss(x) + share loss(x_adv)`` as what is minimized."""
    loss, ends = problem.output_loss, (x, move.inputs)
    outputs = [problem.outputs(end) for end in ends]
    shares = (1.0 - share, share)
    terms = tuple(
        Term(end, part * loss.gradient(output, y)) for end, output, part in zip(ends, outputs, shares, strict=True)
    )
    value = reduce(torch.add, (part * loss.value(output, y) for output, part in zip(outputs, shares, strict=True)))
    return replace(move, value=value, terms=terms)


fgsm = maker(BoundedAscent)
pgm = maker(ProjectedAscent)
