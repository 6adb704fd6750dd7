"""Frontiers: the upper hull of points (clean, robust), and the height of one hull above another where both exist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Point = tuple[float, float]


def upper_hull(points: Sequence[Point]) -> list[Point]:
    """Return the corners of the best mixtures of models, from the least useful clean accuracy to the most."""
    hull: list[Point] = []
    for point in sorted(points):
        while hull and (point[1] >= hull[-1][1] or (len(hull) > 1 and _turn(hull[-2], hull[-1], point) >= 0.0)):
            hull.pop()
        hull.append(point)
    return hull


def _turn(first: Point, middle: Point, last: Point) -> float:
    """Return a positive number if the middle lies below the line from the first to the last."""
    ahead, aside = (last[0] - first[0], last[1] - first[1]), (middle[0] - first[0], middle[1] - first[1])
    return ahead[1] * aside[0] - ahead[0] * aside[1]


def height(points: Sequence[Point], clean: np.ndarray) -> np.ndarray:
    """Return the hull's height at this clean accuracy or more; below its first corner, that corner's height."""
    corners = np.array(upper_hull(points))
    return np.interp(clean, corners[:, 0], corners[:, 1])


def common(ours: Sequence[Point], theirs: Sequence[Point]) -> Point | None:
    """Return the clean accuracies that both sets of points span, or None if they do not overlap."""
    low = max(min(clean for clean, _ in points) for points in (ours, theirs))
    high = min(max(clean for clean, _ in points) for points in (ours, theirs))
    return (low, high) if low < high else None


def ahead(ours: Sequence[Point], theirs: Sequence[Point], levels: Sequence[float] = (0.25, 0.5, 0.75)) -> list[float]:
    """Return the height of the first hull above the second: the mean over the common interval, then at parts of it."""
    span = common(ours, theirs)
    if span is None:
        return []
    low, high = span
    corners = [clean for points in (ours, theirs) for clean, _ in upper_hull(points) if low < clean < high]
    where = np.array(sorted({low, *corners, high}))  # both hulls are straight in between
    gap = height(ours, where) - height(theirs, where)
    mean = float(np.trapezoid(gap, where) / (high - low))
    at = np.array([low + level * (high - low) for level in levels])
    return [mean, *(height(ours, at) - height(theirs, at)).tolist()]
