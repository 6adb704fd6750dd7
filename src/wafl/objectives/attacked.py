"""Train on examples that an attack has moved: PGM, FGSM, and FedRobust's affine map.

PGM and FGSM stay in a ball around each example. The attacks on test data are in ``wafl.attacks``.
"""

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
from wafl.base.random import normal, uniform
from wafl.objectives.base import (
    Move,
    Objective,
    ObjectiveState,
    Term,
    better,
    lane_scalar,
    move_at_layer,
    random_starts,
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
        """Return epsilon and the length of a step."""
        return {"epsilon": self.epsilon, "step_size": self.epsilon}

    @property
    def reach(self) -> tuple[str, float, float] | None:
        """The name of the option ``epsilon``, its value and its norm."""
        return "epsilon", self.epsilon, self.norm

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the examples after one step to the surface of the ball."""
        if self.space is not None:
            return move_at_layer(replace(self, space=None), self.space, problem, x, y, state)
        x, state = dense(x), state or ObjectiveState()
        flat = x.flatten(2)
        check_inside(flat, self.box)
        epsilon, step_size = (
            lane_scalar(state, name, value, x)[:, None, None] for name, value in self.scalars().items()
        )
        starts = self._starts(flat, epsilon, state) if self.random_start else [torch.zeros_like(flat)]
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
        inputs = problem.forward(x_adv)
        value = problem.loss(inputs, y)
        return Move(inputs, y, value, cost, torch.ones_like(value, dtype=torch.bool))

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

    def _starts(self, flat: Tensor, epsilon: Tensor, state: ObjectiveState) -> list[Tensor]:
        """Return one point per restart, uniform in the ball."""
        _, batch, features = flat.shape
        if self.norm == math.inf:
            starts = random_starts(uniform, state, flat, (batch, self.restarts, features))
            return [epsilon * (2.0 * start - 1.0) for start in starts]
        # The extra column gives the radius its distribution.
        starts = random_starts(normal, state, flat, (batch, self.restarts, features + 1))
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
        "The share of the loss at moved examples; the rest is the loss at the unmoved examples.",
    ] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restarts > 1 and not self.random_start:
            raise ValueError(f"restarts={self.restarts} without random_start=True would repeat the same ascent")

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the examples after the projected ascent; with several starts, the best end point."""
        move = super().__call__(problem, x, y, state)
        return move if self.share == 1 else blended(move, problem, dense(x), y, self.share)

    def scalars(self) -> dict[str, float]:
        """Return epsilon and the length of a step."""
        step = self.epsilon * (1.0 if self.steps == 1 else 2.5 / self.steps)
        return {"epsilon": self.epsilon, "step_size": step if self.step_size is None else self.step_size}


def blended(move: Move, problem: Problem, x: Tensor, y: Tensor, share: float) -> Move:
    """Return the move, with ``(1 - share) loss(x) + share loss(x_adv)`` to minimize."""
    loss, at_rest, moved = problem.output_loss, problem.outputs(x), problem.outputs(move.inputs)
    first = Term(x, (1.0 - share) * loss.gradient(at_rest, y))
    second = Term(move.inputs, share * loss.gradient(moved, y))
    value = (1.0 - share) * loss.value(at_rest, y) + share * loss.value(moved, y)
    return replace(move, value=value, terms=(first, second))


@frozen
class Affine(Objective):
    """Replace x by ``A x + b``, with one map per client that ascends ``loss - penalty (||A - I||^2 + ||b||^2)``.

    The map takes one ascent step per local step, at the same point as the model's gradient. The client keeps the map
    between rounds.
    """

    penalty: Annotated[float, Positive(), Tunable(30.0, "high"), "The price of a map's distance from the identity."] = (
        1.0
    )
    step_size: Annotated[float, Positive(), Tunable(), "The length of the map's step per local step."] = 0.01

    def scalars(self) -> dict[str, float]:
        """Return the penalty and the length of a step."""
        return {"penalty": self.penalty, "step_size": self.step_size}

    def initial_memory(self, problem: Problem, x: Tensor) -> Tensor:
        """Return the identity map, stored as ``A - I`` followed by ``b``: all zeros."""
        features = math.prod(x.shape[2:])
        return torch.zeros(features * features + features)

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the mapped examples, and the map after its ascent step."""
        x, state = dense(x), state or ObjectiveState()
        flat = x.flatten(2)
        features = flat.shape[-1]
        memory = state.memory
        if memory is None:
            memory = self.initial_memory(problem, x).to(x).expand(len(x), -1)
        linear = memory[:, : features * features].view(-1, features, features)
        offset = memory[:, features * features :]
        moved = flat + torch.bmm(flat, linear.mT) + offset[:, None]
        x_adv = moved.view_as(x)
        loss, gradient = problem.loss_and_gradient(x_adv, y)
        penalty, step_size = (lane_scalar(state, name, value, x)[:, None] for name, value in self.scalars().items())
        weight = state.weight if state.weight is not None else torch.full_like(loss, 1.0 / loss.shape[1])
        weighted = weight[..., None] * gradient.flatten(2)
        ascent = torch.cat([torch.bmm(weighted.mT, flat).flatten(1), weighted.sum(1)], dim=1)
        kept = memory + step_size * (ascent - 2.0 * penalty * memory)
        cost, converged = (moved - flat).square().sum(-1), torch.ones_like(loss, dtype=torch.bool)
        value = loss - penalty * memory.square().sum(-1, keepdim=True)
        return Move(x_adv, y, value, cost, converged, state=replace(state, memory=kept))


fgsm = maker(BoundedAscent)
pgm = maker(ProjectedAscent)
affine = maker(Affine)
