"""phi_gamma along a line: both sides of ``max over t >= 0 of logsumexp_j(a_j + s_j t) - gamma t^2``.

The first term is convex in t, so between two points it lies below its chord, and a chord minus a parabola has its
maximum in closed form. Beyond ``t = max_j s_j / (2 gamma)`` the whole only decreases. More points close the gap.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

POINTS = 16
MOST_POINTS = 4096
CHUNK = 1 << 21
"""How many numbers are worked on at a time."""


@dataclass(frozen=True)
class Line:
    """The maximum lies between ``lower``, its value at ``t``, and ``upper``; one of each per row."""

    lower: Tensor
    upper: Tensor
    t: Tensor


def along_lines(offsets: Tensor, slopes: Tensor, gamma: float, tolerance: Tensor, most: int = MOST_POINTS) -> Line:
    """Both sides for each row of ``offsets [n, C]`` and ``slopes [n, C]``, within the row's ``tolerance [n]``.

    ``most`` is the largest number of points; rows that need more keep a larger gap.
    """
    found = _on_a_grid(offsets, slopes, gamma, min(POINTS, most))
    points = POINTS
    while points < most:
        points = min(4 * points, most)
        rows = (found.upper - found.lower > tolerance).nonzero()[:, 0]
        if not len(rows):
            break
        finer = _on_a_grid(offsets[rows], slopes[rows], gamma, points)
        better = finer.lower >= found.lower[rows]
        found.lower[rows] = torch.where(better, finer.lower, found.lower[rows])
        found.t[rows] = torch.where(better, finer.t, found.t[rows])
        found.upper[rows] = torch.minimum(finer.upper, found.upper[rows])
    return found


def _on_a_grid(offsets: Tensor, slopes: Tensor, gamma: float, points: int) -> Line:
    size = max(1, CHUNK // ((points + 1) * offsets.shape[1]))
    parts = [_chords(a, s, gamma, points) for a, s in zip(offsets.split(size), slopes.split(size), strict=True)] or [
        _chords(offsets, slopes, gamma, points)
    ]
    return Line(*(torch.cat([getattr(part, name) for part in parts]) for name in ("lower", "upper", "t")))


def _chords(offsets: Tensor, slopes: Tensor, gamma: float, points: int) -> Line:
    end = slopes.amax(-1).clamp_min(0.0) / (2.0 * gamma)
    t = end[:, None] * torch.linspace(0.0, 1.0, points + 1, dtype=offsets.dtype, device=offsets.device)
    convex = torch.logsumexp(offsets[:, :, None] + slopes[:, :, None] * t[:, None, :], dim=1)
    reached, place = (convex - gamma * t.square()).max(-1)
    width = t.diff(dim=-1)
    slope = torch.where(width > 0, convex.diff(dim=-1) / width.clamp_min(torch.finfo(t.dtype).tiny), 0.0)
    top = torch.clamp(slope / (2.0 * gamma), t[:, :-1], t[:, 1:])
    chord = convex[:, :-1] + slope * (top - t[:, :-1]) - gamma * top.square()
    return Line(reached, torch.maximum(chord.amax(-1), reached), t.gather(-1, place[:, None])[:, 0])
