"""Compute phi_gamma of a linear model by example, from both sides: ``sup over x' of loss(x') - gamma ||x' - x||^2``.

Cross-entropy: every norm and every gamma > 0, by ``lines.py`` (l1, and along the distance alone for every norm),
``settled.py`` (l2 and l_inf) and ``branch_and_bound.py``.

Squared error ``a ||s - y||^2``: closed forms. With the residual r, a move ``delta`` changes the objective to
``a ||r + W delta||^2 - gamma ||delta||^2``:

- l2: in the eigenvectors of ``W W^T``, with eigenvalues ``e_i``, ``phi = a sum_i r_i^2 gamma / (gamma - a e_i)``.
- l1: a convex function is largest at a corner of the ball, so one coordinate moves:
  ``phi = loss + max_i (a <r, w_i>)^2 / (gamma - a ||w_i||^2)``, with the columns of W.
- l_inf: the move is t times a corner s of the box, and with ``z = W s``
  ``phi = loss + max over z of (a <r, z>)^2 / (gamma - a ||z||^2)``. Only corners of ``{W s}`` count, and there are
  few for up to three outputs (:func:`corners`). Finding the best is NP-hard for many outputs: there phi
  is at most ``loss + ||g||_1^2 / (4 gamma - 2 L_zz)``, and at least the value of the move along ``sign(g)``.

Below a times the largest ``||W v||^2`` with ``||v|| <= 1`` it is infinite (for l_inf with many outputs: not bounded).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from wafl.base.threads import map_in_threads
from wafl.tasks.losses import CrossEntropy, OutputLoss, SquaredError
from wafl.theory.constants.linear_models import known as is_known
from wafl.theory.phi.branch_and_bound import EASY, branch
from wafl.theory.phi.incumbents import CHUNK, Ball, climb, summit
from wafl.theory.phi.lines import along_coordinates, along_lines
from wafl.theory.phi.settled import settled_above, within_ellipsoids

MOST_INPUTS = {1: 1 << 20, 2: 1 << 20, 3: 1024}
"""The maximum number of inputs, by the number of outputs: in space there are about twice their square of points."""
PARALLEL = 1e-9
"""Columns whose directions differ by less count as parallel."""
MISSED = 4.0 * PARALLEL
"""How far from all points a corner may be, relative to the sum of the columns' lengths."""


class Regression:
    """The two sides of phi_gamma for squared error: ``W [k, D]``, the factor a, and the ground norm."""

    def __init__(self, weight: Tensor, factor: float, norm: float) -> None:
        self._weight, self._factor, self._norm = weight, factor, norm
        self.limit = factor * float(SquaredError().curvature(weight[None], norm)[0]) / 2.0
        self._corners = corners(weight) if norm == math.inf and len(weight) > 1 else None
        if self._corners is not None:
            points, missed = self._corners
            self.limit = min(self.limit, factor * (float(points.norm(dim=-1).max()) + missed) ** 2)

    def bounds(self, outputs: Tensor, targets: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``(lower, upper, cost)``, each ``[n]``; infinite unless gamma is above the limit."""
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
        """Return the gain at the best of the points, an upper bound on the gain at corners near them, and the cost."""
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
    """Return points ``W s`` with s in the box, ``[m, k]`` for ``W [k, D]``, and a corner's largest distance from them.

    Each corner and its opposite share one point. None if there are too many, as with more than three outputs. Of the
    ``2^D`` corners s of the box ``||s||_inf <= 1`` only few end at corners of the zonotope ``{W s}``: in the plane 2 D,
    one after another as a direction turns and one column of W after the other changes its sign. In space every corner
    is the end of an edge that is parallel to some column, and along that column the corners look like the corners of a
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
    """Return the sums of ``columns [n, D, k]`` with the signs of a turning direction in ``plane [n, D, 2]``."""
    down = (plane[..., 1] < 0) | ((plane[..., 1] == 0) & (plane[..., 0] < 0))
    sign = torch.where(down, -1.0, 1.0).to(plane)[..., None]
    upward = sign * plane
    order = torch.atan2(upward[..., 1], upward[..., 0]).argsort(-1)
    turned = (sign * columns).gather(1, order[..., None].expand_as(columns))
    return turned.sum(1, keepdim=True) - 2.0 * (turned.cumsum(1) - turned)


PIECE, ON_GPU = 4096, 1 << 17
"""The number of examples that are searched together on a CPU and on a GPU."""
COARSE = 64
"""Points along the distance for a bound that branch and bound may still improve."""
BISECTIONS = 60


@dataclass(frozen=True)
class Phi:
    """The two sides of phi_gamma, ``lower`` and ``upper [n]``; a move of squared length ``cost`` attains ``lower``.

    The loss after that move is ``lower + gamma cost``.
    """

    lower: Tensor
    upper: Tensor
    cost: Tensor


class LinearPhi:
    """The two sides of phi_gamma for outputs ``W x + b``, ``W [C, D]`` in float64, and a loss that :func:`is_known`."""

    def __init__(self, weight: Tensor, loss: OutputLoss, norm: float) -> None:
        if not is_known(loss):
            raise ValueError(f"phi_gamma is known for cross-entropy and squared error, not for {loss.name}")
        self._ball = Ball(weight, norm)
        self._loss, self._weight, self._norm = loss, weight, norm
        factor = loss.quadratic
        self._regression = None if factor is None else Regression(weight, factor, norm)

    @cached_property
    def _curvature(self) -> float:
        return float(CrossEntropy().curvature(self._weight[None], self._norm)[0])

    def _concave(self, gamma: float) -> bool:
        """Return whether the maximized function is concave in p and so has one maximum."""
        return self._norm == 2 and 2.0 * gamma >= self._curvature

    @property
    def limit(self) -> float:
        """The gamma above which phi_gamma is finite."""
        return 0.0 if self._regression is None else self._regression.limit

    def reached(self, outputs: Tensor, y: Tensor, gamma: float, tolerance: float) -> tuple[Tensor, Tensor]:
        """Return the result of an ascent: a lower bound on phi_gamma, and the squared length of the move."""
        if self._regression is not None:
            lower, _, cost = self._regression.bounds(outputs, y, gamma)
            return lower, cost
        return _in_pieces(partial(self._reached, gamma), outputs, y, tolerance)

    def _reached(self, gamma: float, piece: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, y, allowed = piece
        if self._norm == 1:
            lower, _, cost = along_coordinates(self._ball.weight, a, y, gamma, allowed)
            return lower, cost
        best = climb(self._ball, a, y, gamma, allowed, self._concave(gamma))
        return best.value, best.cost

    def bounds(self, outputs: Tensor, y: Tensor, gamma: float, tolerance: float, group: Tensor | None = None) -> Phi:
        """Return both sides of phi_gamma, at most ``tolerance`` apart unless the search would become too long.

        ``outputs [n, C]`` belong to the examples at rest, and ``y`` are their labels ``[n]`` or targets ``[n, C]``.
        With ``group [n]``, numbers from 0 such as the examples' clients, the tolerance in l_inf is for the mean over
        each group: hard examples get the tolerance that easy ones do not need.
        """
        if self._regression is not None:
            return Phi(*self._regression.bounds(outputs, y, gamma))
        lower, upper, cost = _in_pieces(partial(self._at_first, gamma), outputs, y, tolerance)
        allowed = torch.full_like(lower, tolerance)
        if group is not None and self._norm == math.inf:  # in l2 few examples are hard, and in l1 none
            for _ in range(2):  # an ellipsoid for the larger tolerance leaves more of it to the others
                allowed = shared_tolerance(upper - lower, group, tolerance)
                wide = (upper - lower > allowed).nonzero()[:, 0]
                if not len(wide):
                    break
                known = (each[wide] for each in (_differences(outputs, y), y, lower, upper, allowed))
                upper[wide] = _in_threads(partial(self._in_ellipsoids, gamma), tuple(known))[0]
            allowed = shared_tolerance(upper - lower, group, tolerance)
        wide = (upper - lower > allowed).nonzero()[:, 0]
        if len(wide) and self._norm != 1:
            known = (each[wide] for each in (_differences(outputs, y), y, lower, upper, allowed))
            low, high, spent = _in_threads(partial(self._searched, gamma), tuple(known))
            lower[wide], upper[wide] = low, torch.maximum(high, low)
            cost[wide] = torch.where(spent.isnan(), cost[wide], spent)
        return Phi(lower, upper, cost)

    def _at_first(self, gamma: float, piece: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return both sides by closed forms and ascents; only branch and bound may close the remaining gap."""
        a, y, allowed = piece
        if self._norm == 1:
            return along_coordinates(self._ball.weight, a, y, gamma, allowed)
        if self._concave(gamma):
            best = summit(self._ball, a, y, gamma, allowed)
            lower, cost, upper = best.value, best.cost, best.value + best.missed
        else:
            best = climb(self._ball, a, y, gamma, allowed)
            if self._norm == 2:
                best = settled_above(self._ball, a, y, best, gamma, EASY * allowed)
                upper = best.value + best.missed
            else:
                upper = within_ellipsoids(self._ball, a, y, best.p, best.value, gamma, EASY * allowed)
                # In a tiny ball the tolerance is far more than the radius adds to the loss, and this is tighter.
                upper = torch.minimum(upper, self._smooth(a, y, gamma))
            lower, cost = best.value, best.cost
        wide = (upper - lower > allowed).nonzero()[:, 0]
        if len(wide):
            upper[wide] = torch.minimum(upper[wide], self._along_the_distance(a[wide], y[wide], gamma, allowed[wide]))
        return lower, torch.maximum(upper, lower), cost

    def _in_ellipsoids(self, gamma: float, piece: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor]:
        a, y, lower, upper, allowed = piece
        best = climb(self._ball, a, y, gamma, allowed)
        return (upper.minimum(within_ellipsoids(self._ball, a, y, best.p, lower, gamma, EASY * allowed)),)

    def _searched(
        self, gamma: float, piece: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        a, y, lower, upper, allowed = piece
        return branch(self._ball, a, y, gamma, lower, upper, allowed)

    def _along_the_distance(self, a: Tensor, y: Tensor, gamma: float, allowed: Tensor) -> Tensor:
        """Return a bound from ``||w_j - w_y||_* t``, the largest rise of A_j at distance t; exact for two classes."""
        most = COARSE if a.shape[1] > 2 else 4096
        return along_lines(a, self._ball.distances[y], gamma, 0.5 * allowed, most).upper

    def _smooth(self, a: Tensor, y: Tensor, gamma: float) -> Tensor:
        """Return ``loss + ||g||_*^2 / (4 gamma - 2 L)``, tight for a large gamma."""
        modulus = 2.0 * gamma - self._curvature
        if modulus <= 0.0:
            return torch.full_like(a[:, 0], math.inf)
        return a.logsumexp(-1) + self._ball.size(y, a.softmax(-1)).square() / (2.0 * modulus)


def distance_to_error(ball: Ball, outputs: Tensor, y: Tensor, slack: float = 0.0) -> Tensor:
    """Return each example's distance to a tie with another class; 0 for errors. Leads are reduced by ``slack``."""
    behind = -_differences(outputs, y) - slack
    behind.scatter_(-1, y[:, None], math.inf)
    far = ball.distances[y]
    # A rival with the same weights never catches up; one that is ahead is there already.
    return torch.where(behind <= 0, 0.0, behind / far).amin(-1)


def _differences(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs - outputs.gather(-1, y[:, None])


def shared_tolerance(gap: Tensor, group: Tensor, tolerance: float) -> Tensor:
    """Return the allowed gap of each example, one number per group, for a mean of ``tolerance`` in each group.

    It is the largest level at which the mean of ``min(gap, level)`` over the group is at most the tolerance.

    >>> gap, group = torch.tensor([0.0, 1.0, 9.0, 5.0]), torch.tensor([0, 0, 0, 1])
    >>> shared_tolerance(gap, group, 2.0).tolist()
    [5.0, 5.0, 5.0, 2.0]
    """
    count = torch.bincount(group).to(gap)
    low, high = torch.full_like(count, tolerance), tolerance * count
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        mean = torch.zeros_like(count).scatter_add(0, group, torch.minimum(gap, middle[group])) / count
        low, high = torch.where(mean <= tolerance, middle, low), torch.where(mean <= tolerance, high, middle)
    return low[group]


def _in_pieces(search: Callable[[Any], Any], outputs: Tensor, y: Tensor, tolerance: float) -> Any:
    return _in_threads(search, (_differences(outputs, y), y, torch.full_like(outputs[:, 0], tolerance)))


def _in_threads(search: Callable[[Any], Any], tensors: tuple[Tensor, ...]) -> Any:
    """Search pieces of the examples in threads, and join the resulting tensors."""
    size = PIECE if tensors[0].device.type == "cpu" else ON_GPU
    pieces = list(zip(*(tensor.split(size) for tensor in tensors), strict=True))
    return tuple(map(torch.cat, zip(*map_in_threads(search, pieces), strict=True)))
