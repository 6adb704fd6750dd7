"""Compute the exact mixture nearest to a target from cuts, so that no example leaves a source.

**This is no privacy guarantee.** The target's examples are shown to every source. In each round a source sends one mean
cost and, for every point of the target, the share of its examples that go there. This share counts the examples in a
cell of a diagram that the coordinator has drawn. The examples' mean and spread follow from many rounds. A coordinator
that chooses the points and the potentials can make cells as small as it likes, and find single examples.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wafl.base.checks import check_positive
from wafl.weights.transport.cutting_planes import linear_program
from wafl.weights.transport.distances import Distance, TransportWeights

MOST_POINTS = 300
"""The maximum number of points of a target; rounds grow with their number, about three for each point."""

_MAX_ROUNDS = 3000
_LEVEL = 0.3
_BETWEEN_BOUNDS = 8
_ROUNDING = 1e-9

Array = NDArray[np.float64]
Exchange = Literal["examples", "cuts"]
Cuts = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The sources' replies for a potential ``g [n]``: :func:`cut` of each, ``[sources]`` and ``[sources, n]``."""


def check_exchange(exchange: str, *, labels: str | None, method: str = "exact") -> None:
    """Raise ValueError for an unknown exchange, and for options that cuts do not support."""
    if exchange not in ("examples", "cuts"):
        raise ValueError(f"exchange={exchange!r} must be 'examples' or 'cuts'")
    if exchange == "cuts" and (labels or method != "exact"):
        option = labels or f"method={method!r}"
        raise ValueError(f"{option} cannot be used with exchange='cuts', which is exact and sends no labels: drop one")


def cut(x: Tensor, target: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``mean over x [N, d] of min_k (||x - y_k||^2 - g_k)``, and the share of x with minimum k, ``[n]``.

    ``target [n, d]`` are the y_k. The mean is concave in g, and minus the shares is a supergradient of it.

    >>> mean, shares = cut(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.0], [4.0]]), torch.zeros(2))
    >>> round(float(mean), 4), shares
    (0.6667, tensor([0.6667, 0.3333]))
    """
    costs = torch.cdist(x, target, compute_mode="donot_use_mm_for_euclid_dist").square() - g
    least, index = costs.min(1)
    return least.mean(), torch.bincount(index, minlength=len(g)).to(g.dtype) / len(x)


def cuts(sources: Sequence[Tensor], target: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`cut` for each of several sources in this process."""
    means, shares = zip(*(cut(x, target, g) for x in sources), strict=True)
    return torch.stack(means), torch.stack(shares)


def mixture_from_cuts(sources: Cuts, target: Tensor, tolerance: float | None = None) -> TransportWeights:
    """Compute ``min over the simplex of W_2^2(P_lambda, Q)``, to a gap of ``tolerance`` times the value.

    ``distances`` are lower bounds of each source's distance. The tolerance is 1e-6 by default, or 1e-3 for over 100
    points.

    With ``F_i(g)`` the mean that source i sends and b the weights of the target's points, duality and the minimax
    theorem give ``min over lambda of W_2^2 = max over g of min_i F_i(g) + <b, g>``, a concave function whose value at
    any g is a lower bound. Each cut bounds F_i from above everywhere by ``C - <h, g>``, where h are the shares and ``C
    = F_i + <h, g>`` the mean cost of this transport. A linear program maximizes the smallest of these bounds. Its dual
    variables mix the cuts to a plan that ends at the target: they give the weights, one share per source, and a cost
    that these weights reach.

    The next g is the point nearest to the best g so far at which the bounds allow 0.3 of the gap. This is the level
    method ( Lemarechal, Nemirovskii and Nesterov, "New variants of bundle methods", Mathematical Programming, 1995),
    which takes a third of the rounds of the bounds' maximizer.
    """
    points = len(target)
    if tolerance is None:
        tolerance = 1e-6 if points <= 100 else 1e-3
    check_positive("tolerance", tolerance)
    b = np.full(points, 1.0 / points)
    model = _Model(b, float((target - target.mean(0)).square().sum(1).mean()))
    g = best = np.zeros(points)
    lower, least = -math.inf, np.array(-math.inf)
    for rounds in range(1, _MAX_ROUNDS + 1):
        means, shares = (reply.numpy() for reply in sources(torch.from_numpy(g)))
        model.add(means, shares, g)
        reached = means + b @ g
        least = np.maximum(least, reached)
        if reached.min() > lower:
            lower, best = float(reached.min()), g
        enough = lower + max(tolerance * lower, _ROUNDING * model.scale)
        if rounds % _BETWEEN_BOUNDS == 1 or model.ceiling <= enough:
            model.bound(best)
        if model.upper <= enough:
            distances = [Distance(each, math.nan) for each in least.tolist()]
            gap = max(model.upper - lower, 0.0)
            return TransportWeights.of("mixture", model.weights.tolist(), model.upper, distances, gap)
        if model.ceiling <= enough:
            model.widen()
        g = model.next(best, lower)
    raise RuntimeError(
        f"{_MAX_ROUNDS} rounds of cuts prove only {lower:g} to {model.upper:g}: raise tolerance, or show fewer points"
    )


class _Model:
    """The minimum of all cuts, ``min_j (C_j - <h_j, g>) + <b, g>``, an upper bound of the maximized function."""

    def __init__(self, b: Array, scale: float) -> None:
        self.scale = scale
        self.ceiling = self.upper = math.inf
        self.weights = torch.empty(0)
        self._b, self._box, self._sources = b, 0.0, 0
        self._costs, self._shares = np.empty(0), np.empty((0, len(b)))

    def add(self, means: Array, shares: Array, g: Array) -> None:
        self._sources = len(means)
        self._costs = np.append(self._costs, means + shares @ g)
        self._shares = np.vstack([self._shares, shares])
        self.scale = max(self.scale, float(self._costs.max()))
        self._box = max(self._box, 4.0 * self.scale)

    def bound(self, center: Array) -> None:
        """Maximize the model in a box around ``center``; if the box does not bind, this is the global maximum."""
        (count, points), unit = self._shares.shape, self.scale or 1.0
        ends = np.stack([center - self._box, center + self._box], 1) / unit
        ones = np.ones((count, 1))
        solved = linear_program(
            -np.append(self._b, 1.0), np.hstack([self._shares, ones]), self._costs / unit, [*ends, (None, None)]
        )
        self.ceiling, self._highest = -solved.fun * unit, solved.x[:points] * unit
        missed = np.abs(solved.lower.marginals[:points] + solved.upper.marginals[:points]).sum()
        if missed > _ROUNDING:  # the plan does not end at the target
            return
        shares = np.maximum(-solved.ineqlin.marginals, 0.0)
        self.upper = self.ceiling
        self.weights = torch.from_numpy((shares / shares.sum()).reshape(-1, self._sources).sum(0))

    def widen(self) -> None:
        """Double the box.

        With few cuts the model is unbounded, so the box grows only when no gain remains inside it.
        """
        self._box *= 2.0

    def next(self, best: Array, lower: float) -> Array:
        """Return the g nearest to ``best`` where the model is 0.3 of the way from ``lower`` to its maximum."""
        level = lower + _LEVEL * (self.ceiling - lower)
        if (point := self._nearest(best, level)) is not None:
            return point
        self.bound(best)  # the ceiling was not the model's any more
        point = self._nearest(best, lower + _LEVEL * (self.ceiling - lower))
        return self._highest if point is None else point

    def _nearest(self, best: Array, level: float) -> Array | None:
        """Return the point nearest to ``best`` with all cuts at ``level`` or above, or None.

        See Lawson and Hanson, chapter 23.
        """
        from scipy.optimize import nnls

        slopes, unit = self._b - self._shares, self.scale or 1.0
        wanted = (level - self._costs - slopes @ best) / unit
        system = np.vstack([slopes.T, wanted])
        aim = np.append(np.zeros(len(best)), 1.0)
        try:
            shares, _ = nnls(system, aim, maxiter=30 * system.shape[1])
        except RuntimeError:  # it gave up
            return None
        *step, last = system @ shares - aim
        point = best - np.array(step) / last * unit if last < 0 else best
        missed = level - (self._costs + slopes @ point).min()
        return point if missed <= 1e-3 * abs(level - (self._costs + slopes @ best).min()) else None
