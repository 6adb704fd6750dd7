"""Bound phi_gamma along a line, from both sides: ``max over t >= 0 of logsumexp_j(a_j + s_j t) - gamma t^2``.

The first term is convex in t, so between two points it lies below its chord, and a chord minus a parabola has its
maximum in closed form. Beyond ``t = max_j s_j / (2 gamma)`` the whole only decreases. More points close the gap.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

POINTS, FEW_POINTS = 16, 4
"""The initial number of points of a search along one line, and along each of many coordinates."""
MOST_POINTS = 4096
CHUNK, SLOPES = 1 << 21, 1 << 22
"""How many numbers are processed at a time: along lines, and of slopes along coordinates."""


@dataclass(frozen=True)
class Sides:
    """The two sides of a maximum per row: it lies between ``lower``, its value at ``t``, and ``upper``."""

    lower: Tensor
    upper: Tensor
    t: Tensor


def along_lines(offsets: Tensor, slopes: Tensor, gamma: float, tolerance: Tensor, most: int = MOST_POINTS) -> Sides:
    """Return both sides for each row of ``offsets [n, C]`` and ``slopes [n, C]``, within the row's ``tolerance [n]``.

    ``most`` is the largest number of points; rows that need more keep a larger gap.
    """
    sides = _on_a_grid(offsets, slopes, gamma, min(POINTS, most))
    points = POINTS
    while points < most:
        points = min(4 * points, most)
        rows = (sides.upper - sides.lower > tolerance).nonzero()[:, 0]
        if not len(rows):
            break
        finer = _on_a_grid(offsets[rows], slopes[rows], gamma, points)
        better = finer.lower >= sides.lower[rows]
        sides.lower[rows] = torch.where(better, finer.lower, sides.lower[rows])
        sides.t[rows] = torch.where(better, finer.t, sides.t[rows])
        sides.upper[rows] = torch.minimum(finer.upper, sides.upper[rows])
    return sides


def _on_a_grid(offsets: Tensor, slopes: Tensor, gamma: float, points: int) -> Sides:
    size = max(1, CHUNK // ((points + 1) * offsets.shape[1]))
    pieces = [_chords(a, s, gamma, points) for a, s in zip(offsets.split(size), slopes.split(size), strict=True)]
    return Sides(*(torch.cat([getattr(piece, name) for piece in pieces]) for name in ("lower", "upper", "t")))


def _chords(offsets: Tensor, slopes: Tensor, gamma: float, points: int) -> Sides:
    end = slopes.amax(-1).clamp_min(0.0) / (2.0 * gamma)
    t = end[:, None] * torch.linspace(0.0, 1.0, points + 1, dtype=offsets.dtype, device=offsets.device)
    convex = torch.logsumexp(offsets[:, :, None] + slopes[:, :, None] * t[:, None, :], dim=1)
    reached, index = (convex - gamma * t.square()).max(-1)
    width = t.diff(dim=-1)
    slope = torch.where(width > 0, convex.diff(dim=-1) / width.clamp_min(torch.finfo(t.dtype).tiny), 0.0)
    top = torch.clamp(slope / (2.0 * gamma), t[:, :-1], t[:, 1:])
    chord = convex[:, :-1] + slope * (top - t[:, :-1]) - gamma * top.square()
    return Sides(reached, torch.maximum(chord.amax(-1), reached), t.gather(-1, index[:, None])[:, 0])


def along_coordinates(
    weight: Tensor, a: Tensor, y: Tensor, gamma: float, tolerance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(lower, upper, cost)`` for l1, each ``[n]``: the loss is convex, so a single coordinate moves.

    That makes ``2 D`` searches along a line. Most are pruned by ``logsumexp_j(A_j + (s_j)_+^2 / (4 gamma))``, which
    each search stays below.
    """
    sides = torch.empty(3, len(a), dtype=a.dtype, device=a.device)
    for label in y.unique().tolist():
        slopes = (weight - weight[label]).T
        slopes = torch.cat([slopes, -slopes])
        rows = (y == label).nonzero()[:, 0]
        for some in rows.split(max(1, SLOPES // len(slopes))):
            sides[:, some] = _of_one_label(slopes, a[some], gamma, tolerance[some])
    lower, upper, cost = sides
    return lower, upper, cost


def _of_one_label(slopes: Tensor, a: Tensor, gamma: float, tolerance: Tensor) -> Tensor:
    """Return ``(lower, upper, cost)`` for ``slopes [2 D, C]``, the effect of each signed coordinate on each A_j."""
    tiny = torch.finfo(a.dtype).tiny
    lift = slopes.clamp_min(0.0).square() / (4.0 * gamma)
    top, highest = lift.amax(-1), a.amax(-1)
    ceiling = (torch.exp(a - highest[:, None]) @ torch.exp(lift - top[:, None]).T + tiny).log()
    ceiling += highest[:, None] + top
    first = ceiling.argmax(-1)
    tolerance = torch.minimum(tolerance, 0.02 * (ceiling.amax(-1) - a.logsumexp(-1)))
    sides = along_lines(a, slopes[first], gamma, tolerance)
    lower, upper, cost = sides.lower, sides.upper.clone(), sides.t.square()
    ceiling.scatter_(-1, first[:, None], -torch.inf)
    row, coordinate = (ceiling > (lower + tolerance)[:, None]).nonzero(as_tuple=True)
    upper = torch.maximum(upper, torch.where(ceiling <= (lower + tolerance)[:, None], ceiling, -torch.inf).amax(-1))
    points = FEW_POINTS
    while len(row):
        sides = _on_a_grid(a[row], slopes[coordinate], gamma, points)
        best = lower.scatter_reduce(0, row, sides.lower, "amax")
        winner = (sides.lower >= best[row]) & (sides.lower > lower[row])
        cost, lower = cost.scatter(0, row[winner], sides.t[winner].square()), best
        # Only a coordinate that may still be the best one needs more points.
        open_ = (sides.upper > (lower + tolerance)[row]) & (points < MOST_POINTS)
        upper = upper.scatter_reduce(0, row[~open_], sides.upper[~open_], "amax")
        row, coordinate, points = row[open_], coordinate[open_], 4 * points
    return torch.stack([lower, torch.maximum(upper, lower), cost])
