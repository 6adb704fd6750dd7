"""Bound the gain of an example of a linear model by the shares of the classes after the move.

Let ``A_j = s_j - s_y``, ``d_j = w_j - w_y``, and let H be the entropy. The cross-entropy ``logsumexp_j A_j`` is the
largest value of ``H(p) + <p, A>`` over all shares p, which are nonnegative and sum to 1. The best move for fixed p
gains ``q(p) = ||sum_j p_j d_j||_*^2 / (4 gamma)``, which is convex. So
``phi_gamma = max over p of H(p) + <p, A> + q(p)``. Three steps bound this maximum:

1. Choose a few classes c. Let v be their shares, r the share of all other classes together, and ``h(v, r)`` the entropy
   of these few numbers. For fixed v, q is convex in the way that r is divided among the other classes. So it is at most
   the mean of ``q_j``, its values if one class j gets all of r. The best division then gives
   ``phi_gamma <= max over v of h(v, r) + L(v)``, with
   ``L(v) = sum_c v_c A_c + r logsumexp_j(A_j + q_j(v) / r)``. For ``r = 0`` all ``q_j`` are q, which takes the place of
   the last term.
2. A grid divides the set of all v into simplices. In a simplex, the convex ``q_j`` is at most the linear function with
   the same values at the corners. With a linear ``q_j``, ``r logsumexp_j(A_j + q_j / r)`` is convex in v, as the
   perspective of a convex function. So L is at most the linear interpolation of its values ``L_i`` at the corners v_i.
3. Write the interpolation as ``<(v, r), k>``. Then ``h(v, r) + <(v, r), k> <= logsumexp(k)``, again because logsumexp
   is the maximum over all shares. And ``h(v, r) <= -<(v, r), log m>`` for any shares m (Gibbs' inequality), so
   ``max_i L_i - <(v_i, r_i), log m>`` is another bound. We use the smaller one, with m the mean of the corners.

The largest of these bounds over all simplices bounds phi_gamma. This holds for any choice of classes; we choose those
with the largest ``A_j + ||d_j||_*^2 / (4 gamma)``.
"""

import math
from functools import cache, lru_cache
from itertools import pairwise, permutations, product

import torch
from torch import Tensor

from wafl.base.norms import dual, power_norm
from wafl.promises.layers import UNIT, WIDER

CHOSEN = 3
"""The number of classes with an individual share."""
NEAR = 7
"""The number of other classes whose q_j is computed; for the rest, the triangle inequality bounds it."""
PARTS = 5
"""The number of parts into which the grid divides each edge."""
BLOCK = 256
"""The number of examples per step; more examples need more memory and save no time."""
TOGETHER, TABLES = 16, 8192
"""The number of norm tables that are computed together, and the number that are cached."""


class Shares:
    """Bounds on phi_gamma of one linear model with weights ``[C, d]``. Different gammas use the same norms."""

    def __init__(self, weight: Tensor, norm: float) -> None:
        self._weight, self._dual = weight, dual(norm)
        self._size = float(power_norm(weight, self._dual, 1).max())
        self._tables = dict[tuple[int, ...], Tensor]()

    def surrogate(self, margins: Tensor, slopes: Tensor, y: Tensor, gamma: float) -> Tensor:
        """Return the bound for margins A and norms ``||d_j||_*``, both ``[n, C]`` and rounded up."""
        parts = zip(margins.split(BLOCK), slopes.split(BLOCK), y.split(BLOCK), strict=True)
        bound = torch.cat([self._surrogate(*part, gamma) for part in parts])
        return bound.nan_to_num(nan=math.inf, posinf=math.inf)  # numbers that are too large prove nothing

    def _surrogate(self, margins: Tensor, slopes: Tensor, y: Tensor, gamma: float) -> Tensor:
        classes = margins.shape[1]
        chosen = min(CHOSEN, classes - 1)
        near = min(NEAR, classes - chosen)
        grid, corners, entropy, interpolate = _grid(chosen)
        rest = grid[:, -1]
        order = (margins + slopes.square() / (4.0 * gamma)).argsort(1, descending=True)
        first, others = order[:, :chosen].sort(1).values, order[:, chosen : chosen + near].sort(1).values
        far = order[:, chosen + near :]
        without, *each = self._squares(y, first, others).unbind(1)
        squares = torch.stack(each, 1)  # [n, near, V]
        if far.shape[1]:
            most = without.sqrt()[:, None] + rest * slopes.gather(1, far)[..., None]
            squares = torch.cat([squares, most.square() * WIDER], 1)
        gained, alone = squares / (4.0 * gamma), without / (4.0 * gamma)
        inner = margins.gather(1, torch.cat([others, far], 1))[..., None] + gained / torch.where(rest > 0, rest, 1.0)
        level = margins.gather(1, first) @ grid[:, :-1].T + torch.where(rest > 0, rest * inner.logsumexp(1), alone)
        k = (level @ interpolate).view(len(y), chosen + 1, -1)
        bounds = k.logsumexp(1).minimum((level[:, corners] + entropy).amax(1))
        # Every sum above has at most 56 terms, whose factors `interpolate` are integers that sum to at most 17.
        size = 1.0 + math.log(classes) + margins.abs().amax(1) + gained.amax((1, 2)).maximum(alone.amax(1))
        return bounds.amax(1) + (classes + 4096) * UNIT * size

    def _squares(self, y: Tensor, first: Tensor, others: Tensor) -> Tensor:
        """Return ``||sum_c v_c d_c + r d_j||_*^2`` for the label (``d_y = 0``) and other classes: ``[n, 1 + J, V]``."""
        keys, which = torch.cat([y[:, None], first, others], 1).unique(dim=0, return_inverse=True)
        names = [tuple(key) for key in keys.tolist()]
        if len(self._tables) > TABLES:
            self._tables.clear()
        missing = keys[[name not in self._tables for name in names]]
        for part in missing.split(TOGETHER):
            self._tables.update(zip(map(tuple, part.tolist()), self._measured(part, first.shape[1]), strict=True))
        return torch.stack([self._tables[name] for name in names])[which]

    def _measured(self, keys: Tensor, chosen: int) -> Tensor:
        """Return these squares for labels, chosen and other classes ``[K, 1 + m + J]``: ``[K, 1 + J, V]``."""
        grid = _grid(chosen)[0]
        steps = self._weight[keys] - self._weight[keys[:, :1]]
        mixed, ends = grid[:, :-1] @ steps[:, 1 : 1 + chosen], steps[:, [0, *range(1 + chosen, keys.shape[1])]]
        lengths = torch.empty(len(keys), ends.shape[1], len(grid), dtype=torch.float64)
        for rest in grid[:, -1].unique().tolist():
            at, toward = grid[:, -1] == rest, ends if rest else ends[:, :1]
            lengths[..., at] = torch.cdist(-rest * toward, mixed[:, at], self._dual, "donot_use_mm_for_euclid_dist")
        # The vectors have entries that are off by at most 16 UNIT times the entries of the longest row.
        return (lengths * WIDER + 32.0 * UNIT * self._size).square()


@lru_cache(maxsize=4)
def shares_of(weight: bytes, classes: int, norm: float) -> Shares:
    """Return the bounds of a linear model. The same weights get the same object, so the norms are computed once."""
    return Shares(torch.frombuffer(bytearray(weight), dtype=torch.float64).view(classes, -1), norm)


@cache
def _grid(chosen: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the grid's points (v, r), the corners of its S simplices, their ``-log m``, and the map from L to k.

    These are ``[V, m]``, two times ``[m, S]``, and ``[V, m S]``.

    The sums ``v_1 + ... + v_i`` do not decrease with i. In units of 1 / PARTS, a path through a unit cube from its
    lowest to its highest corner, one coordinate at a time, is a simplex. The paths of all cubes with sorted coordinates
    divide the set of all v (Kuhn's triangulation).
    """
    units = range(chosen)
    simplices = list[list[tuple[int, ...]]]()
    for lowest in product(range(PARTS), repeat=chosen):
        for order in permutations(units):
            path = [tuple(lowest[i] + (i in order[:step]) for i in units) for step in range(chosen + 1)]
            if all(list(sums) == sorted(sums) for sums in path):
                simplices.append(path)
    points = sorted({point for path in simplices for point in path})
    parts = torch.tensor([[b - a for a, b in pairwise((0, *point, PARTS))] for point in points], dtype=torch.float64)
    corners = torch.tensor([[points.index(point) for point in path] for path in simplices])
    grid = parts / PARTS
    entropy = -(grid[corners] * grid[corners].mean(1, keepdim=True).log()).sum(2)
    # A simplex has the volume of the whole set over PARTS^(m - 1), so the inverse of its corners consists of integers.
    inverses = (PARTS * torch.linalg.inv(parts[corners])).round()  # [S, m, corners]
    chooses = torch.nn.functional.one_hot(corners, len(points)).double()  # [S, corners, V]
    return grid, corners.T, entropy.T, (inverses @ chooses).permute(2, 1, 0).flatten(1)
