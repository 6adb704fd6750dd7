"""CORAL between clients, for research alone: a client's statistics of features follow the mean of all clients.

Sun and Saenko, "Deep CORAL: Correlation alignment for deep domain adaptation" (ECCV 2016 workshops), with clients as
domains. The reference is the mean covariance of the clients of the same run at the same local step, which is more than
clients exchange in federated training: it favors CORAL. It needs all clients of a run in one batch of lanes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from wafl.base.options import frozen
from wafl.objectives.base import Move, Objective, ObjectiveState, Term, lane_scalar
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem


@frozen
class Coral(Objective):
    """Descend ``loss + penalty ||C_i - C||_F^2 / (4 d^2)``, with C_i the covariance of a layer's d outputs at a client.

    C is the mean of C_i over the lanes with the same penalty and learning rate, which are the clients of one run. It is
    held fixed in the gradient.
    """

    penalty: float = 1.0
    space: str | None = None
    moves: ClassVar = False

    def scalars(self) -> dict[str, float]:
        """Return the penalty."""
        return {"penalty": self.penalty}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the examples unmoved, with the terms of the loss and the penalty."""
        assert self.space is not None
        x, state = dense(x), state or ObjectiveState()
        outputs, loss = problem.outputs(x), problem.output_loss
        features = problem.task.features(problem.params, x, self.space, problem.masks).flatten(2)
        share = torch.full_like(outputs[..., 0], 1.0 / y.shape[1]) if state.weight is None else state.weight
        away = features - (share[..., None] * features).sum(1, keepdim=True)
        covariance = (share[..., None] * away).mT @ away
        penalty = lane_scalar(state, "penalty", self.penalty, problem.params)
        rate = lane_scalar(state, "learning_rate", 0.0, problem.params)
        same = ((penalty[:, None] == penalty) & (rate[:, None] == rate)).to(outputs)
        mean = ((same / same.sum(1, keepdim=True)) @ covariance.flatten(1)).view_as(covariance)
        gap, size = covariance - mean, features.shape[2]
        value = loss.value(outputs, y) + (penalty * gap.square().sum((1, 2)) / (4.0 * size**2))[:, None]
        slopes = (penalty / size**2)[:, None, None] * (away @ gap)
        terms = (Term(x, loss.gradient(outputs, y)), Term(x, slopes, layer=self.space))
        rest = torch.zeros_like(value)
        return Move(x, y, value, rest, torch.ones_like(rest, dtype=torch.bool), state=state, terms=terms)
