"""phi_gamma of a linear model with squared error ``a ||s - y||^2``, in closed form.

With the residual r, a move ``delta`` changes the objective to ``a ||r + W delta||^2 - gamma ||delta||^2``:

- l2: in the eigenvectors of ``W W^T``, with eigenvalues ``e_i``, ``phi = a sum_i r_i^2 gamma / (gamma - a e_i)``.
- l1: a convex function is largest at a corner of the ball, so one coordinate moves:
  ``phi = loss + max_i (a <r, w_i>)^2 / (gamma - a ||w_i||^2)``, with the columns of W.
- l_inf: the move is t times a corner s of the box, and with ``z = W s``
  ``phi = loss + max over z of (a <r, z>)^2 / (gamma - a ||z||^2)``. Only corners of ``{W s}`` count, of which there are
  few for up to three outputs (:func:`corners`). To find the best is NP-hard for many outputs: there phi
  is at most ``loss + ||g||_1^2 / (4 gamma - 2 L_zz)``, and at least what the move along ``sign(g)`` attains.

Below a times the largest ``||W v||^2`` with ``||v|| <= 1`` it is infinite (for l_inf with many outputs: not bounded).
"""

import math

import torch
from torch import Tensor

from wafl.tasks.losses import SquaredError
from wafl.theory.phi.incumbents import CHUNK

MOST_INPUTS = {1: 1 << 20, 2: 1 << 20, 3: 1024}
"""How many inputs there may be, by the number of outputs: in space there are about twice their square of points."""
PARALLEL = 1e-9
"""Columns whose directions differ by less count as parallel."""
MISSED = 4.0 * PARALLEL
"""How far from all points a corner may be, relative to the sum of the columns' lengths."""


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
            gain, index = (slope.square() / (gamma - bent)).max(-1)
            return loss + gain, loss + gain, gain / (gamma - bent)[index]
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
        for piece in residual.split(max(1, CHUNK // len(points))):
            value, index = (piece @ scaled).abs_().max(-1)
            best.append((value + missed * float(scale.max()) * piece.norm(dim=-1), index))
        upper, index = map(torch.cat, zip(*best, strict=True))
        left = gamma - self._factor * size[index].square()
        gain = (self._factor * (residual * points[index]).sum(-1)).square() / left
        return gain, torch.maximum(upper.square(), gain), gain / left


def corners(weight: Tensor) -> tuple[Tensor, float] | None:
    """Points ``W s`` with s in the box, ``[m, k]`` for ``W [k, D]``, and how far a corner may be from all of them.

    Of a corner and its opposite there is one. None if there are too many, as with more than three outputs. Of the
    ``2^D`` corners s of the box ``||s||_inf <= 1`` only few end at corners of the zonotope ``{W s}``: in the plane 2 D,
    one after another as a direction turns and one column of W after the other changes its sign. In space every corner
    is the end of an edge that is parallel to some column, and along that column the corners look like those of a
    plane: D turns.

    >>> points, _ = corners(torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64))
    >>> sorted(points.abs().tolist())
    [[1.0, 2.0], [1.0, 2.0]]
    """
    outputs, inputs = weight.shape
    if inputs > MOST_INPUTS.get(outputs, 0):
        return None
    columns = weight.T[weight.abs().amax(0) > 0]
    missed = MISSED * float(columns.norm(dim=-1).sum())
    if not len(columns):
        return torch.zeros_like(weight[:, 0])[None], 0.0
    if outputs == 1:
        return columns.abs().sum(0)[None], missed
    if outputs == 2:
        return _turned(columns[None], columns[None])[0], missed
    axes = columns / columns.norm(dim=-1, keepdim=True)
    frames = torch.linalg.qr(axes[:, :, None], mode="complete").Q[..., 1:]  # of the plane across each column
    seen = columns @ frames
    alike = seen.norm(dim=-1) <= PARALLEL * columns.norm(dim=-1)
    edges = (alike * (axes @ columns.T).sign()) @ columns
    rest = _turned(seen, columns * ~alike[..., None])
    return torch.cat([rest + edges[:, None], rest - edges[:, None]]).flatten(0, 1), missed


def _turned(plane: Tensor, columns: Tensor) -> Tensor:
    """The sums of ``columns [n, D, k]`` whose signs are those of a turning direction in ``plane [n, D, 2]``."""
    down = (plane[..., 1] < 0) | ((plane[..., 1] == 0) & (plane[..., 0] < 0))
    sign = torch.where(down, -1.0, 1.0).to(plane)[..., None]
    upward = sign * plane
    order = torch.atan2(upward[..., 1], upward[..., 0]).argsort(-1)
    turned = (sign * columns).gather(1, order[..., None].expand_as(columns))
    return turned.sum(1, keepdim=True) - 2.0 * (turned.cumsum(1) - turned)
