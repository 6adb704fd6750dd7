"""phi_gamma of a linear model with squared error ``a ||s - y||^2``, in closed form.

With the residual r, a move ``delta`` changes the objective to ``a ||r + W delta||^2 - gamma ||delta||^2``:

- l2: in the eigenvectors of ``W W^T``, with eigenvalues ``e_i``, ``phi = a sum_i r_i^2 gamma / (gamma - a e_i)``.
- l1: a convex function is largest at a corner of the ball, so one coordinate moves:
  ``phi = loss + max_i (a <r, w_i>)^2 / (gamma - a ||w_i||^2)``, with the columns of W.
- l_inf: the move is t times a corner s of the box, and with ``z = W s``
  ``phi = loss + max over z of (a <r, z>)^2 / (gamma - a ||z||^2)``. Only corners of ``{W s}`` count, of which there are
  few for up to three outputs (:mod:`wafl.theory.phi.corners`). To find the best is NP-hard for many outputs: there phi
  is at most ``loss + ||g||_1^2 / (4 gamma - 2 L_zz)``, and at least what the move along ``sign(g)`` attains.

Below a times the largest ``||W v||^2`` with ``||v|| <= 1`` it is infinite (for l_inf with many outputs: not bounded).
"""

import math

import torch
from torch import Tensor

from wafl.tasks.losses import SquaredError
from wafl.theory.phi.class_pull import CHUNK
from wafl.theory.phi.corners import corners


class Regression:
    """``W [k, D]``, the factor a, and the ground norm."""

    def __init__(self, weight: Tensor, factor: float, norm: float) -> None:
        self._weight, self._factor, self._norm = weight, factor, norm
        self.limit = factor * float(SquaredError().curvature(weight[None], norm)[0]) / 2.0
        self._corners = corners(weight) if norm == math.inf and len(weight) > 1 else None
        if self._corners is not None:
            points, missed = self._corners
            self.limit = min(self.limit, factor * (float(points.norm(dim=-1).max()) + missed) ** 2)

    def bounds(self, outputs: Tensor, targets: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
        """``(lower, upper, cost)``, each ``[n]``; infinite unless gamma is above the limit."""
        residual = outputs - targets.view_as(outputs)
        if gamma <= self.limit:
            endless = torch.full_like(outputs[:, 0], math.inf)
            return endless, endless, endless
        loss = self._factor * residual.square().sum(-1)
        if self._norm == 2:
            squares, axes = torch.linalg.eigh(self._weight @ self._weight.T)
            bent = self._factor * squares.clamp(0.0, self.limit / self._factor)
            seen = self._factor * (residual @ axes).square() * bent
            value = loss + (seen / (gamma - bent)).sum(-1)
            return value, value, (self._factor * seen / (gamma - bent).square()).sum(-1)
        slope = self._factor * residual @ self._weight
        if self._norm == 1:
            bent = self._factor * self._weight.square().sum(0)
            gain, place = (slope.square() / (gamma - bent)).max(-1)
            return loss + gain, loss + gain, gain / (gamma - bent)[place]
        if self._corners is not None:
            gain, upper, cost = self._at_corners(residual, *self._corners, gamma)
            return loss + gain, loss + upper, cost
        sign = slope.sign()
        bent = self._factor * (sign @ self._weight.T).square().sum(-1)
        gain = slope.abs().sum(-1).square() / (gamma - bent)
        upper = loss + slope.abs().sum(-1).square() / (gamma - self.limit)
        return loss + gain, torch.maximum(upper, loss + gain), gain / (gamma - bent)

    def _at_corners(
        self, residual: Tensor, points: Tensor, missed: float, gamma: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gain at the best of the points, what no corner near one of them gains more than, and the cost."""
        size = points.norm(dim=-1)
        scale = self._factor / (gamma - self._factor * (size + missed).square()).sqrt()
        scaled, best = (scale[:, None] * points).T, list[tuple[Tensor, Tensor]]()
        for part in residual.split(max(1, CHUNK // len(points))):
            value, place = (part @ scaled).abs_().max(-1)
            best.append((value + missed * float(scale.max()) * part.norm(dim=-1), place))
        upper, place = (torch.cat([pair[side] for pair in best]) for side in (0, 1))
        left = gamma - self._factor * size[place].square()
        gain = (self._factor * (residual * points[place]).sum(-1)).square() / left
        return gain, torch.maximum(upper.square(), gain), gain / left
