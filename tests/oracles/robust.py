"""Robust means as plain loops over clients and parameters, straight from their definitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

Row = Sequence[float]


def mean(rows: Sequence[Row], weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [sum(w * row[j] for w, row in zip(weights, rows, strict=True)) / total for j in range(len(rows[0]))]


def median(rows: Sequence[Row], weights: Sequence[int]) -> list[float]:
    """Whole weights only: every value is written down as often as its weight says."""
    return [
        statistics.median([row[j] for row, times in zip(rows, weights, strict=True) for _ in range(times)])
        for j in range(len(rows[0]))
    ]


def trimmed_mean(rows: Sequence[Row], weights: Sequence[int], cut: int) -> list[float]:
    """Whole weights only: as for the median, without the ``cut`` lowest and the ``cut`` highest."""
    result: list[float] = []
    for j in range(len(rows[0])):
        values = sorted(row[j] for row, times in zip(rows, weights, strict=True) for _ in range(times))
        result.append(statistics.fmean(values[cut : len(values) - cut]))
    return result


def distance(one: Row, other: Row) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)))


def krum_order(rows: Sequence[Row], liars: int) -> list[int]:
    """The rows from the best score to the worst: the sum of squared distances to the n - liars - 2 nearest others."""

    def score(i: int) -> float:
        others = sorted(distance(rows[i], rows[j]) ** 2 for j in range(len(rows)) if j != i)
        return sum(others[: len(rows) - liars - 2])

    return sorted(range(len(rows)), key=score)


def bulyan(rows: Sequence[Row], liars: int) -> list[float]:
    """El Mhamdi et al. 2018: n - 2 f times Krum, then of each coordinate the n - 4 f values nearest to the median."""
    left, selected = list(rows), list[Row]()
    while len(selected) < len(rows) - 2 * liars:
        # Krum counts n - f - 2 neighbors; at the end, when fewer models are left, it counts one.
        neighbors = max(1, len(left) - liars - 2)
        scores = [
            sum(sorted(distance(one, other) ** 2 for other in left if other is not one)[:neighbors]) for one in left
        ]
        selected.append(left.pop(scores.index(min(scores))))
    result: list[float] = []
    for column in zip(*selected, strict=True):
        middle = statistics.median(column)
        nearest = sorted(column, key=lambda value: (abs(value - middle), value))
        result.append(statistics.fmean(nearest[: len(rows) - 4 * liars]))
    return result


def geometric_median(rows: Sequence[Row], weights: Sequence[float]) -> list[float]:
    """A general minimizer, from several starts, that knows nothing of Weiszfeld."""

    def cost(z: np.ndarray) -> float:
        return sum(w * distance(row, z) for w, row in zip(weights, rows, strict=True))

    starts = [np.array(mean(rows, weights)), *(np.array(row) for row in rows)]
    ends = [
        minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20_000}).x
        for start in starts[:2]
    ]
    return list(min([*ends, *starts], key=cost))


def clipped(start: Row, rows: Sequence[Row], weights: Sequence[float], multiple: float) -> list[float]:
    """The mean of updates of at most ``multiple`` times the lower median of the lengths that are not 0."""
    lengths = [distance(row, start) for row in rows]
    moved = [length for length in lengths if length > 0]
    limit = multiple * statistics.median_low(moved) if len(moved) > 1 else math.inf
    cut = [
        [s + (r - s) * min(1.0, limit / length) if length else r for s, r in zip(start, row, strict=True)]
        for row, length in zip(rows, lengths, strict=True)
    ]
    return mean(cut, weights)


def draw(seed: int, clients: int, size: int) -> tuple[list[float], list[list[float]], list[int]]:
    """A start, the clients' models, of which the first is far off, and whole weights."""
    draws = np.random.default_rng(seed)
    start = draws.normal(size=size)
    rows = start + draws.normal(size=(clients, size)) * draws.uniform(0.5, 2.0, (clients, 1))
    rows[0] += 40.0
    weights = [int(weight) for weight in draws.integers(1, 6, clients)]
    return start.tolist(), rows.tolist(), weights
