"""Upper bounds on phi_gamma: what clients report for a certificate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.adversaries import AdversaryState, Move, Wasserstein
from wafl.adversaries.base import lane_scalar
from wafl.core.inputs import Inputs, dense, shared
from wafl.core.norms import dual, power_norm
from wafl.core.task import Problem


@dataclass(frozen=True)
class UpperBound:
    """Never below ``phi_gamma(z)`` if ``2 gamma > L``, the Lipschitz constant of the loss's gradient in the norm.

    For l2 the objective ``f(x') = loss(x') - gamma ||x' - x||^2`` is concave with modulus ``2 gamma - L``, so wherever
    the ascent ends, ``sup f <= f + ||grad f||^2 / (2 (2 gamma - L))``: what the solver may have missed is added. In
    every norm ``loss(x') <= loss + ||g||_* ||x' - x|| + L ||x' - x||^2 / 2``, so
    ``phi_gamma <= loss + ||g||_*^2 / (4 gamma - 2 L)``, which for l2 is the first bound without an ascent.
    """

    norm: float = 2
    steps: int = 200
    tolerance: float = 1e-5  # what the ascent misses is added, and is of second order

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
            ascent = Wasserstein(steps=self.steps, tolerance=self.tolerance, bounds=None)
            move = ascent(problem, x, y, state)
        else:
            loss = problem.loss(x, y)
            move = Move(x, y, loss, torch.zeros_like(loss), torch.zeros_like(loss, dtype=torch.bool), state=state)
        modulus = 2.0 * gamma - curvature
        slope, cost = _slope_and_cost(problem, shared(x), y, move, gamma, modulus, self.norm)
        return Move(move.inputs, y, move.value + slope / (2.0 * modulus), cost, move.converged, state=state)


def _slope_and_cost(
    problem: Problem, x: Inputs, y: Tensor, move: Move, gamma: Tensor, modulus: Tensor, norm: float
) -> tuple[Tensor, Tensor]:
    """``||grad f||_*^2`` where an ascent ended, and the squared distance at which the bound itself is largest.

    That is farther by ``grad f / modulus``: the bound is a parabola with that curvature.
    """
    moved = move.inputs
    if isinstance(moved, Inputs) and moved.shift is not None and moved.outputs is not None and problem.linear:
        # In class space the move is W^T u and the gradient W^T r with r = dloss - 2 gamma u; ||W^T r||^2 = r^T W W^T r.
        gram = torch.bmm(problem.linear[0], problem.linear[0].mT)
        residual = problem.output_loss.gradient(moved.outputs.mT, y).mT - 2.0 * gamma[:, None] * moved.shift
        further = moved.shift + residual / modulus[:, None]
        slope, cost = ((torch.bmm(gram, part) * part).sum(1).clamp_min(0.0) for part in (residual, further))
        return slope, cost
    gradient = problem.gradient(dense(moved), y).flatten(2)
    if norm != 2:
        slope = power_norm(gradient, dual(norm), 2)
        return slope, slope / modulus.square()
    delta = (move.x_adv - x.dense()).flatten(2)
    gradient = gradient - 2.0 * gamma[..., None] * delta
    return power_norm(gradient, 2, 2), power_norm(delta + gradient / modulus[..., None], 2, 2)
