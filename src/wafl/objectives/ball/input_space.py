"""The ascent on the inputs themselves: any model, norm, power and bounds."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wafl.base.bounds import Box
from wafl.base.norms import power_norm
from wafl.objectives.ball.ascent import Room, backtrack, close, linear_maximizer, settling
from wafl.objectives.base import Move
from wafl.objectives.capture import check_inside, everywhere
from wafl.tasks.inputs import Inputs, shared
from wafl.tasks.problem import Problem
from wafl.tasks.products import product


@dataclass
class InputSpace:
    """The space of the inputs: points are moves ``[L, B, D]``, priced by ``gamma ||move||^power``."""

    problem: Problem
    inputs: Inputs
    y: Tensor
    gamma: Tensor
    norm: float
    power: int
    bounds: Box | None

    def __post_init__(self) -> None:
        self.x = self.inputs.dense()
        self.flat = self.x.flatten(2)
        self.features = self.flat.shape[-1]
        check_inside(self.flat, self.bounds)
        self.room = None if self.bounds is None else Room.within(self.flat, self.bounds)

    def cost(self, delta: Tensor) -> Tensor:
        return power_norm(delta, self.norm, self.power)

    def evaluate(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        loss, gradient = self.problem.loss_and_gradient(self.x + delta.view_as(self.x), self.y)
        return loss - self.gamma[:, None] * self.cost(delta), gradient.flatten(2)

    def aim_at(self, gradient: Tensor) -> Tensor:
        return linear_maximizer(gradient, self.gamma, self.norm, self.power, self.room)

    def length(self, move: Tensor) -> Tensor:
        return power_norm(move, self.norm, 1)

    def class_starts(self) -> list[Tensor]:
        """For each class k, where ``s_k - s_y``, the difference of the losses of two labels, aims."""
        if self.problem.output_loss.probabilities is None:
            return []
        gradient = self.problem.gradient(self.x, self.y)
        labels = (torch.full_like(self.y, label) for label in range(num_classes(self.problem, shared(self.x))))
        return [self.aim_at((gradient - self.problem.gradient(self.x, label)).flatten(2)) for label in labels]

    def random_start(self, draw: Tensor) -> Tensor:
        """As far away as the first step goes, in a direction that the norm favors."""
        gradient = self.evaluate(torch.zeros_like(self.flat))[1]
        return self.aim_at(draw * power_norm(gradient, 2, 1)[..., None])

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        origin = torch.zeros_like(self.flat)
        begin = origin if start is None else start
        delta, value, settled = backtrack(
            self.evaluate, self.aim_at, self.length, begin, origin, steps, tolerance, feature_dim=2
        )
        return Move(self.moved(delta), self.y, value, self.cost(delta), settled)

    def moved(self, delta: Tensor) -> Tensor:
        """Return the examples after a move."""
        x_adv = self.x + delta.view_as(self.x)
        return x_adv if self.bounds is None else x_adv.clamp_(*self.bounds)


def num_classes(problem: Problem, x: Inputs) -> int:
    """How many outputs the models have."""
    if problem.linear is not None:
        return problem.linear[0].shape[1]
    return problem.outputs(x).shape[-1]


@dataclass(frozen=True)
class _Moving:
    """The examples that still move: their numbers among all, their moves ``[N, 1, D]``, and what decides these."""

    rows: Tensor
    delta: Tensor
    gamma: Tensor
    room: Room | None

    def take(self, still: Tensor) -> "_Moving":
        room = self.room and Room(self.room.down[still], self.room.up[still])
        return _Moving(self.rows[still], self.delta[still], self.gamma[still], room)


class LinearSpace(InputSpace):
    """The inputs of a linear model with a convex loss of bounded slopes, where the full step never descends."""

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        assert self.problem.linear is not None
        weight, loss = self.problem.linear[0], self.problem.output_loss
        at_rest = self.problem.outputs(self.x).mT

        def outputs_at(delta: Tensor) -> Tensor:
            return product(weight, delta, at_rest).mT

        delta, outputs = (torch.zeros_like(self.flat), at_rest.mT) if start is None else (start, outputs_at(start))
        settled = torch.zeros_like(self.y, dtype=torch.bool)
        moving = self._everyone(delta)
        for step in range(steps + 1):
            slope = torch.bmm(loss.gradient(outputs, self.y), weight).flatten(0, 1)[:, None]
            if len(moving.rows) < len(slope):
                slope = slope.index_select(0, moving.rows)
            near = moving.delta if step else None
            aim = linear_maximizer(slope, moving.gamma, self.norm, self.power, moving.room, near)
            if tolerance > 0 or step == steps:
                arrived = close(self.length(aim - moving.delta), settling(tolerance, aim), self.length(aim))[:, 0]
                settled = settled.flatten().index_copy(0,moving.rows, settled.flatten()[moving.rows] | arrived).view_as(settled)
            if step == steps or (tolerance > 0 and everywhere(settled)):
                break
            if tolerance > 0:
                still=(~arrived).nonzero().squeeze(1)
                moving = replace(moving, delta=aim).take(still)
                delta = delta.flatten(0,1)[:,None].index_copy(0, moving.rows, moving.delta).view_as(delta)
            else:
                moving = replace(moving, delta=aim)
                delta = aim.view_as(delta)
            outputs = outputs_at(delta)
        cost = self.cost(delta)
        value, rest = loss.value(outputs, self.y) - self.gamma[:, None] * cost, loss.value(at_rest.mT, self.y)
        settled = settled & (value > -torch.inf)  # a move whose cost overflows is no maximum
        climbed = value >= rest  # always, except for rounding and where a start was worse
        if not everywhere(climbed):
            delta, cost = torch.where(climbed[..., None], delta, 0.0), torch.where(climbed, cost, 0.0)
            outputs = torch.where(climbed[..., None], outputs, at_rest.mT)
        x_adv = self.moved(delta)
        inputs = Inputs(x_adv, len(x_adv), outputs=outputs.mT)
        return Move(inputs, self.y, torch.maximum(value, rest), cost, settled)

    def _everyone(self, delta: Tensor) -> _Moving:
        def apart(values: Tensor) -> Tensor:
            return values.flatten(0, 1)[:, None]

        room = self.room and Room(apart(self.room.down), apart(self.room.up))
        rows = torch.arange(self.y.numel(), device=delta.device)
        return _Moving(rows, apart(delta), self.gamma.repeat_interleave(self.y.shape[1]), room)
