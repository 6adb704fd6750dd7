"""FedRobust's objective: each client's inputs pass through an affine map that ascends along with the model."""

import math
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, Tunable, frozen, maker
from wafl.objectives.base import Move, Objective, ObjectiveState, lane_scalar
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem


@frozen
class Affine(Objective):
    """Replace x by ``A x + b``, with one map per client that ascends ``loss - penalty (||A - I||^2 + ||b||^2)``.

    The map takes one ascent step per local step, at the same point as the model's gradient, and stays with its client
    between rounds.
    """

    penalty: Annotated[float, Positive(), Tunable(30.0, "high"), "The price of a map's distance from the identity."] = (
        1.0
    )
    step_size: Annotated[float, Positive(), Tunable(), "How far the map moves per local step."] = 0.01

    def scalars(self) -> dict[str, float]:
        return {"penalty": self.penalty, "step_size": self.step_size}

    def initial_memory(self, problem: Problem, x: Tensor) -> Tensor:
        """The identity map, stored as ``A - I`` and then ``b``: all zeros."""
        features = math.prod(x.shape[2:])
        return torch.zeros(features * features + features)

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
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


affine = maker(Affine)
