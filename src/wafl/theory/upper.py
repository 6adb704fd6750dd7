"""phi_gamma from above: what clients report for a certificate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.adversaries import AdversaryState, Move, Wasserstein
from wafl.adversaries.base import lane_scalar
from wafl.inputs import Inputs, dense, shared
from wafl.norms import dual, power_norm
from wafl.task import Problem


@dataclass(frozen=True)
class UpperBound:
    """Never below ``phi_gamma(z)``, for ``2 gamma > L``, L the Lipschitz constant of the loss's gradient in the norm.

    For l2 the objective ``f(x') = loss(x') - gamma ||x' - x||^2`` is concave with modulus ``2 gamma - L``, so wherever
    the ascent ends, ``sup f <= f + ||grad f||^2 / (2 (2 gamma - L))``: what the solver may have missed is added. In
    every norm ``loss(x') <= loss + ||g||_* ||x' - x|| + L ||x' - x||^2 / 2``, so
    ``phi_gamma <= loss + ||g||_*^2 / (4 gamma - 2 L)``, which for l2 is the first without an ascent.
    """

    norm: float = 2
    steps: int = 300
    tolerance: float = 1e-9

    def scalars(self) -> dict[str, float]:
        return {"gamma": 1.0, "curvature": 0.0}

    def initial_memory(self, input_shape: tuple[int, ...]) -> None:
        return None

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: AdversaryState | None = None) -> Move:
        state = state or AdversaryState()
        gamma, curvature = (
            lane_scalar(state, name, value, problem.params)[:, None] for name, value in self.scalars().items()
        )
        if self.norm == 2:
            ascent = Wasserstein(steps=self.steps, tolerance=self.tolerance)
            move = ascent(problem, x, y, state)
        else:
            rest = torch.zeros_like(y, dtype=problem.params.dtype).view(*y.shape[:2], -1)[..., 0]
            move = Move(x, y, problem.loss(x, y), rest, rest.bool(), state=state)
        missed = _squared_slope(problem, shared(x), y, move, gamma, self.norm) / (2.0 * (2.0 * gamma - curvature))
        return Move(move.inputs, y, move.value + missed, move.cost, move.converged, state=state)


def _squared_slope(problem: Problem, x: Inputs, y: Tensor, move: Move, gamma: Tensor, norm: float) -> Tensor:
    """``||grad f||_*^2`` at the point an ascent has reached."""
    moved = move.inputs
    if isinstance(moved, Inputs) and moved.shift is not None and moved.outputs is not None and problem.linear:
        # In class space the gradient is W^T r, r = dloss - 2 gamma u.
        residual = problem.output_loss.gradient(moved.outputs.mT, y).mT - 2.0 * gamma[:, None] * moved.shift
        return torch.bmm(problem.linear[0].mT, residual).square().sum(1)
    slope = problem.gradient(dense(moved), y).flatten(2)
    if norm == 2:
        slope = slope - 2.0 * gamma[..., None] * (move.x_adv - x.dense()).flatten(2)
    return power_norm(slope, dual(norm), 2)
