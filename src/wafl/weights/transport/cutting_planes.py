"""Find the mixture nearest to several targets at once, by cutting planes of its distance to each target."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from wafl.base.checks import check_positive
from wafl.weights.transport.costs import Pair, network_simplex

_ARCS_PER_ROW = 10


@dataclass(frozen=True)
class Evaluation:
    """The distance at given weights: ``value`` is the cost of a plan, and ``cut @ weights`` the dual value of ``g``."""

    value: float
    cut: Tensor
    g: Tensor


class MixtureDistance:
    """The distance ``V(lambda) = W_2^2(P_lambda, Q)``, where ``P_lambda = sum_i lambda_i P_i``.

    By duality ``V(lambda) = max over g of sum_i lambda_i <a_i, f_i> + <b, g>`` with ``f_r = min_k (M_rk - g_k)``, so
    *every* g gives a linear function of lambda that lies below V everywhere: a cut. At the optimal g it touches V.

    The search for the plan starts with few arcs: the plans of the pairs, with which any lambda is feasible, and the
    cheapest arcs of each point given g. More arcs are opened until the cut proves that none is missing.
    """

    def __init__(self, costs: Sequence[Tensor], pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.scale = sum(float(cost.mean()) for cost in costs) / len(costs)
        self._cost, self._sizes = torch.cat(list(costs)), [len(cost) for cost in costs]
        columns = self._cost.shape[1]
        self._target = torch.full((columns,), 1.0 / columns, dtype=torch.float64)
        self._open = torch.zeros(self._cost.shape, dtype=torch.bool)
        for opened, pair in zip(self._open.split(self._sizes), pairs, strict=True):
            opened[pair.arcs] = True

    def cut(self, g: Tensor) -> Tensor:
        """Return the cut that g proves: ``V(lambda) >= cut @ lambda``."""
        return torch.stack([f.mean() for f in self.potentials(g)]) + g.mean()

    def at(self, weights: Tensor, slack: float) -> Evaluation:
        """Return V at some weights, bounded from both sides to within ``slack``."""
        while True:
            value, g = self._restricted(weights)
            cut, opened = self._price(g)
            if not opened or value - float(cut @ weights) <= slack:
                return Evaluation(value, cut, g)

    def potentials(self, g: Tensor) -> tuple[Tensor, ...]:
        """Return ``f_r = min_k (M_rk - g_k)``, one tensor per source."""
        return (self._cost - g).min(1).values.split(self._sizes)

    def _restricted(self, weights: Tensor) -> tuple[float, Tensor]:
        """Return the cost of the best plan on the open arcs of sources with weight, and its potential on the target."""
        from scipy.sparse import coo_matrix

        sizes = torch.tensor(self._sizes)
        masses = (weights / sizes).repeat_interleave(sizes)
        used = masses > 0
        rows, columns = (self._open & used[:, None]).nonzero(as_tuple=True)
        arcs = (used.cumsum(0) - 1)[rows].numpy(), columns.numpy()
        costs = self._cost[rows, columns].numpy(), arcs
        table = coo_matrix(costs, shape=(int(used.sum()), len(self._target)))
        _, value, _, g = network_simplex(masses[used], self._target, table)
        return value, g

    def _price(self, g: Tensor) -> tuple[Tensor, bool]:
        """Return the cut of g, and whether arcs had to be opened: those with the least ``M_rk - g_k`` in each row."""
        cheapest = (self._cost - g).topk(min(_ARCS_PER_ROW, self._cost.shape[1]), largest=False)
        opened = not bool(self._open.gather(1, cheapest.indices[:, :1]).all())
        self._open.scatter_(1, cheapest.indices, True)
        means = [least.mean() for least in cheapest.values[:, 0].split(self._sizes)]
        return torch.stack(means) + g.mean(), opened


_INSIDE = 0.7
_MAX_STEPS = 1000
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Solution:
    """Weights, and distances to the targets with potentials; the largest is at most ``gap`` above the minimum."""

    weights: Tensor
    values: tuple[float, ...]
    g: tuple[Tensor, ...]
    gap: float


def pick_tolerance(tolerance: float | None, costs: int) -> float:
    """Return the relative gap at which to stop; None means 1e-9 for up to a million costs and 1e-3 for more."""
    if tolerance is None:
        return 1e-9 if costs <= 1_000_000 else 1e-3
    check_positive("tolerance", tolerance)
    return tolerance


def nearest_mixture(targets: Sequence[MixtureDistance], tolerance: float) -> Solution:
    """Compute ``min over the simplex of max_j V_j(lambda)``, to a gap of ``tolerance`` times the value.

    Each V_j is convex and its cuts lie below it, so the minimum of ``max over cuts`` (a small linear program) bounds
    the answer from below, and V at any lambda bounds it from above (Kelley, 1960). The next cut is made between the
    best lambda so far and the solution of the linear program, which needs far fewer cuts than at that solution
    (Ben-Ameur and Neto, "Acceleration of cutting-plane and column generation algorithms", Networks, 2007).
    """
    cuts = [[target.cut(pair.g) for pair in target.pairs] for target in targets]
    best = _best_vertex(targets)
    scale = max(target.scale for target in targets)
    for step in range(_MAX_STEPS):
        lowest, lower = _least([cut for made in cuts for cut in made], scale)
        upper = max(best.values)
        best = replace(best, gap=max(upper - max(lower, 0.0), 0.0))
        if best.gap <= tolerance * upper + _ROUNDING * scale:
            break
        # Near the end the linear program's own lambda may be the answer.
        inside = 0.0 if best.gap < 1e-3 * upper and step % 2 else _INSIDE
        query = _without_crumbs(inside * best.weights + (1.0 - inside) * lowest, 0.01 * best.gap / upper)
        evaluations: dict[int, Evaluation] = {}
        for j in sorted(range(len(targets)), key=lambda j: -float((torch.stack(cuts[j]) @ query).max())):
            evaluations[j] = targets[j].at(query, 0.1 * best.gap)
            cuts[j].append(evaluations[j].cut)
            if evaluations[j].value >= upper:  # these weights are no better, whatever the other targets are
                break
        else:
            at = [evaluations[j] for j in range(len(targets))]
            best = replace(best, weights=query, values=tuple(e.value for e in at), g=tuple(e.g for e in at))
    return best


def _best_vertex(targets: Sequence[MixtureDistance]) -> Solution:
    """Return the single source whose farthest target is nearest."""
    sources = range(len(targets[0].pairs))
    source = min(sources, key=lambda i: max(target.pairs[i].value for target in targets))
    pairs = [target.pairs[source] for target in targets]
    weights = torch.eye(len(sources), dtype=torch.float64)[source]
    return Solution(weights, tuple(pair.value for pair in pairs), tuple(pair.g for pair in pairs), math.inf)


def _least(cuts: Sequence[Tensor], scale: float) -> tuple[Tensor, float]:
    """Return the minimizer of ``max_k cut_k @ lambda`` over the simplex, and a lower bound of the minimum."""
    slopes = torch.stack(tuple(cuts)).numpy()
    count, sources = slopes.shape
    last, below = np.eye(sources + 1)[-1:], np.hstack([slopes / (scale or 1.0), -np.ones((count, 1))])
    bounds = [(0, None)] * sources + [(None, None)]
    solved = linear_program(last[0], below, np.zeros(count), bounds, A_eq=1.0 - last, b_eq=np.ones(1))
    # A mean of cuts is a cut, and its least vertex is a bound that does not depend on the solver's tolerance.
    shares = np.maximum(-solved.ineqlin.marginals, 0.0)
    lower = float((shares / shares.sum() @ slopes).min())
    return _without_crumbs(torch.from_numpy(solved.x[:sources]), 0.0), lower


def linear_program(goal: Any, below: Any, most: Any, bounds: Any, **equal: Any) -> Any:
    """Return the x that minimizes ``goal @ x`` with ``below @ x <= most``; raise an error if scipy finds none."""
    from scipy import optimize

    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    solved = cast(Any, optimize).linprog(goal, below, most, bounds=bounds, method="highs", options=tight, **equal)
    if not solved.success:
        raise RuntimeError(f"the linear program over {len(most)} cuts failed: {solved.message}")
    return solved


def _without_crumbs(weights: Tensor, least: float) -> Tensor:
    """Set weights up to ``least`` to 0; each would take the same time as a large weight."""
    kept = torch.where(weights > least, weights, 0.0)
    return kept / kept.sum()
