"""Ascend on the inputs themselves, for any model, norm, power and bounds."""

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
        """Return the cost of each move, without gamma."""
        return power_norm(delta, self.norm, self.power)

    def evaluate(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objective of each move, and the gradient of the loss there."""
        loss, gradient = self.problem.loss_and_gradient(self.x + delta.view_as(self.x), self.y)
        return loss - self.gamma[:, None] * self.cost(delta), gradient.flatten(2)

    def aim_at(self, gradient: Tensor) -> Tensor:
        """Return the linear maximizer for a gradient, the target of a full step."""
        return linear_maximizer(gradient, self.gamma, self.norm, self.power, self.room)

    def length(self, move: Tensor) -> Tensor:
        """Return the length of each move."""
        return power_norm(move, self.norm, 1)

    def class_starts(self) -> list[Tensor]:
        """Return, for each class k, the target of ``s_k - s_y``, the difference of two labels' losses."""
        if self.problem.output_loss.probabilities is None:
            return []
        gradient = self.problem.gradient(self.x, self.y)
        labels = (torch.full_like(self.y, label) for label in range(num_classes(self.problem, shared(self.x))))
        return [self.aim_at((gradient - self.problem.gradient(self.x, label)).flatten(2)) for label in labels]

    def random_start(self, draw: Tensor) -> Tensor:
        """Return a start at the distance of the first step, in a direction that the norm favors."""
        gradient = self.evaluate(torch.zeros_like(self.flat))[1]
        return self.aim_at(draw * power_norm(gradient, 2, 1)[..., None])

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        """Return the best move of the ascent from a start, by default from the examples."""
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
    """Return the number of outputs of the models."""
    if problem.linear is not None:
        return problem.linear[0].shape[1]
    return problem.outputs(x).shape[-1]


@dataclass(frozen=True)
class _Moving:
    """The examples that still move, ``[L, B]`` or ``[N, 1]``: their moves, their targets, and which have converged.

    Within bounds, a CPU leaves converged examples out of the computations per example, once they are half of all
    examples; ``rows`` are the indices of the others.
    """

    delta: Tensor
    gamma: Tensor
    room: Room | None
    settled: Tensor
    rows: Tensor | None = None

    def part_of(self, values: Tensor) -> Tensor:
        return values if self.rows is None else _chosen(values, self.rows)

    def write(self, values: Tensor, part: Tensor) -> Tensor:
        """Write values of these examples over the values of all examples."""
        if self.rows is None:
            return part
        values.view(-1, *values.shape[2:]).index_copy_(0, self.rows, part[:, 0])
        return values

    def at(self, aim: Tensor, settled: Tensor) -> "_Moving":
        """Move the examples that have not converged to their targets."""
        at_hand = self.room is not None and not aim.is_cuda
        count = int(settled.sum()) if at_hand else 1
        if self.room is None or not at_hand or 2 * count < settled.numel():
            delta = torch.lerp(aim, self.delta, settled[..., None].to(aim)) if count else aim
            return replace(self, delta=delta, settled=settled)
        still = settled.logical_not().flatten().nonzero().squeeze(1)
        gamma = self.gamma.repeat_interleave(settled.shape[1]).index_select(0, still)
        room = Room(_chosen(self.room.down, still), _chosen(self.room.up, still))
        rows = still if self.rows is None else self.rows.index_select(0, still)
        return _Moving(_chosen(aim, still), gamma, room, settled.new_zeros(len(still), 1), rows)


def _chosen(values: Tensor, rows: Tensor) -> Tensor:
    """Return some examples of all lanes, each as one lane."""
    return values.flatten(0, 1).index_select(0, rows).unsqueeze(1)


class LinearSpace(InputSpace):
    """The inputs of a linear model with a convex loss of bounded slopes, where the full step never descends."""

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        """Return the best move of the full steps from a start, by default from the examples."""
        assert self.problem.linear is not None
        weight, loss = self.problem.linear[0], self.problem.output_loss
        at_rest = self.problem.outputs(self.x).mT

        def outputs_at(delta: Tensor) -> Tensor:
            return product(weight, delta, at_rest).mT

        delta, outputs = (
            (torch.zeros_like(self.flat), at_rest.mT) if start is None else (start.clone(), outputs_at(start))
        )
        settled, near = torch.zeros_like(self.y, dtype=torch.bool), None
        moving = _Moving(delta, self.gamma, self.room, settled)
        for step in range(steps + 1):
            slope = moving.part_of(torch.bmm(loss.gradient(outputs, self.y), weight))
            aim = linear_maximizer(slope, moving.gamma, self.norm, self.power, moving.room, near)
            settled = moving.settled
            if tolerance > 0 or step == steps:
                settled = settled | close(self.length(aim - moving.delta), settling(tolerance, aim), self.length(aim))
            if step == steps or (tolerance > 0 and everywhere(settled)):
                break
            moving = moving.at(aim, settled) if tolerance > 0 else replace(moving, delta=aim)
            near, delta = moving.delta, moving.write(delta, moving.delta)
            outputs = outputs_at(delta)
        settled = moving.write(torch.ones_like(self.y, dtype=torch.bool), settled)
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
