"""phi_gamma of a linear model with cross-entropy for l1: the loss is convex, so a single coordinate moves.

That makes ``2 D`` searches along a line. Most are pruned by ``logsumexp_j(A_j + (s_j)_+^2 / (4 gamma))``, which each
search stays below.
"""

import torch
from torch import Tensor

from wafl.theory.phi.class_pull import CHUNK
from wafl.theory.phi.lines import along_lines


def along_coordinates(
    weight: Tensor, a: Tensor, y: Tensor, gamma: float, tolerance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``(lower, upper, cost)``, each ``[n]``."""
    found = torch.empty(3, len(a), dtype=a.dtype, device=a.device)
    for label in y.unique().tolist():
        slopes = (weight - weight[label]).T
        slopes = torch.cat([slopes, -slopes])
        rows = (y == label).nonzero()[:, 0]
        for part in rows.split(max(1, CHUNK // len(slopes))):
            found[:, part] = _of_one_label(slopes, a[part], gamma, tolerance[part])
    lower, upper, cost = found
    return lower, upper, cost


def _of_one_label(slopes: Tensor, a: Tensor, gamma: float, tolerance: Tensor) -> Tensor:
    """``slopes [2 D, C]``: what each signed coordinate adds to each A_j."""
    tiny = torch.finfo(a.dtype).tiny
    lift = slopes.clamp_min(0.0).square() / (4.0 * gamma)
    top, highest = lift.amax(-1), a.amax(-1)
    ceiling = (torch.exp(a - highest[:, None]) @ torch.exp(lift - top[:, None]).T + tiny).log()
    ceiling += highest[:, None] + top
    first = ceiling.argmax(-1)
    tolerance = torch.minimum(tolerance, 0.02 * (ceiling.amax(-1) - a.logsumexp(-1)))
    line = along_lines(a, slopes[first], gamma, tolerance)
    lower, upper, cost = line.lower, line.upper.clone(), line.t.square()
    ceiling.scatter_(-1, first[:, None], -torch.inf)
    row, place = (ceiling > (lower + tolerance)[:, None]).nonzero(as_tuple=True)
    upper = torch.maximum(upper, torch.where(ceiling <= (lower + tolerance)[:, None], ceiling, -torch.inf).amax(-1))
    if len(row):
        line = along_lines(a[row], slopes[place], gamma, tolerance[row])
        best = lower.scatter_reduce(0, row, line.lower, "amax")
        winner = (line.lower >= best[row]) & (line.lower > lower[row])
        cost = cost.scatter(0, row[winner], line.t[winner].square())
        lower, upper = best, upper.scatter_reduce(0, row, line.upper, "amax")
    return torch.stack([lower, torch.maximum(upper, lower), cost])
