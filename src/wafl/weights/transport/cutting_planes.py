"""The mixture nearest to several targets at once, by cutting planes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from wafl.base.checks import check_positive
from wafl.weights.transport.mixture_distance import Evaluation, MixtureDistance

_INSIDE = 0.7
_MAX_STEPS = 1000
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Solution:
    """Weights, and the distance of their mixture to each target with its potential there.

    The largest of these distances is at most ``gap`` above the least possible.
    """

    weights: Tensor
    values: tuple[float, ...]
    g: tuple[Tensor, ...]
    gap: float


def pick_tolerance(tolerance: float | None, costs: int) -> float:
    """The relative gap to stop at; None is 1e-9 for up to a million costs and 1e-3 for more."""
    if tolerance is None:
        return 1e-9 if costs <= 1_000_000 else 1e-3
    check_positive("tolerance", tolerance)
    return tolerance


def nearest_mixture(targets: Sequence[MixtureDistance], tolerance: float) -> Solution:
    """``min over the simplex of max_j V_j(lambda)``, to a gap of ``tolerance`` times the value.

    Each V_j is convex and its cuts lie below it, so the minimum of ``max over cuts`` (a small linear program) bounds
    the answer from below, and V at any lambda bounds it from above (Kelley, 1960). The next cut is made between the
    best lambda so far and that of the linear program, which takes far fewer cuts than at the latter itself (Ben-Ameur
    and Neto, "Acceleration of cutting-plane and column generation algorithms", Networks, 2007).
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
        found: dict[int, Evaluation] = {}
        for j in sorted(range(len(targets)), key=lambda j: -float((torch.stack(cuts[j]) @ query).max())):
            found[j] = targets[j].at(query, 0.1 * best.gap)
            cuts[j].append(found[j].cut)
            if found[j].value >= upper:  # these weights are no better, whatever the other targets are
                break
        else:
            at = [found[j] for j in range(len(targets))]
            best = replace(best, weights=query, values=tuple(e.value for e in at), g=tuple(e.g for e in at))
    return best


def _best_vertex(targets: Sequence[MixtureDistance]) -> Solution:
    """The single source whose farthest target is nearest."""
    sources = range(len(targets[0].pairs))
    source = min(sources, key=lambda i: max(target.pairs[i].value for target in targets))
    pairs = [target.pairs[source] for target in targets]
    weights = torch.eye(len(sources), dtype=torch.float64)[source]
    return Solution(weights, tuple(pair.value for pair in pairs), tuple(pair.g for pair in pairs), math.inf)


def _least(cuts: Sequence[Tensor], scale: float) -> tuple[Tensor, float]:
    """``min over the simplex of max_k cut_k @ lambda``: the minimizer, and a lower bound of the minimum."""
    from scipy.optimize import linprog

    slopes = torch.stack(tuple(cuts)).numpy()
    count, sources = slopes.shape
    solved = linprog(
        np.eye(sources + 1)[-1],
        A_ub=np.hstack([slopes / (scale or 1.0), -np.ones((count, 1))]),
        b_ub=np.zeros(count),
        A_eq=1.0 - np.eye(sources + 1)[-1:],
        b_eq=np.ones(1),
        bounds=[(0, None)] * sources + [(None, None)],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if not solved.success:
        raise RuntimeError(f"the linear program over {count} cuts failed: {solved.message}")
    # A mean of cuts is a cut, and its least vertex is a bound that does not depend on the solver's tolerance.
    shares = np.maximum(-solved.ineqlin.marginals, 0.0)
    lower = float((shares / shares.sum() @ slopes).min())
    return _without_crumbs(torch.from_numpy(solved.x[:sources]), 0.0), lower


def _without_crumbs(weights: Tensor, least: float) -> Tensor:
    """Set weights up to ``least`` to 0: each would take as much time as a large one."""
    kept = torch.where(weights > least, weights, 0.0)
    return kept / kept.sum()
