"""FedRobust's adversary: each client's inputs pass through an affine map that ascends beside the model.

Reisizadeh et al., "Robust federated learning: the case of affine distribution shifts" (NeurIPS 2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wafl.adversaries.base import AdversaryState, Move, lane_scalar
from wafl.core.inputs import Inputs, dense
from wafl.core.task import Problem


@dataclass(frozen=True)
class Affine:
    """See :func:`affine`."""

    penalty: float = 1.0
    step_size: float = 0.01

    def __post_init__(self) -> None:
        for name, value in self.scalars().items():
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name}={value} must be positive and finite")

    def scalars(self) -> dict[str, float]:
        return {"penalty": self.penalty, "step_size": self.step_size}

    def initial_memory(self, input_shape: tuple[int, ...]) -> Tensor:
        """No shift: the linear map's distance from the identity, then the offset, both zero."""
        features = math.prod(input_shape)
        return torch.zeros(features * features + features)

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: AdversaryState | None = None) -> Move:
        x, state = dense(x), state or AdversaryState()
        flat = x.flatten(2)
        features = flat.shape[-1]
        memory = state.memory
        if memory is None:
            memory = self.initial_memory(tuple(x.shape[2:])).to(x).expand(len(x), -1)
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
        cost = (moved - flat).square().sum(-1)
        return Move(
            x_adv,
            y,
            loss - penalty * memory.square().sum(-1, keepdim=True),
            cost,
            torch.ones_like(loss, dtype=torch.bool),
            state=replace(state, memory=kept),
        )


def affine(*, penalty: float = 1.0, step_size: float = 0.01) -> Affine:
    """Replace x by ``A x + b``, one map a client, and ascend ``loss - penalty (||A - I||^2 + ||b||^2)``.

    The map takes one ascent step of ``step_size`` a local step, at the point at which the model takes its
    gradient, and stays with its client between rounds.
    """
    return Affine(penalty, step_size)
