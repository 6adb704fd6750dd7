"""Tests of differences: p-values of many together, and of splits that overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from research.statistics import Mean


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, by Holm's procedure.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, so_far = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = so_far
    return adjusted


def resampled(differences: Sequence[float], ratio: float) -> tuple[Mean, float]:
    """Return the mean of differences in overlapping splits, with its interval, and the p-value of no difference.

    The corrected t-test of Nadeau and Bengio, "Inference for the generalization error", Machine Learning 2003; the
    ratio is the number of tested clients over the number of training clients.
    """
    from scipy.stats import t as student

    count, value = len(differences), fmean(differences)
    error = math.sqrt(variance(differences) * (1.0 / count + ratio))
    p = 2.0 * float(student.sf(abs(value) / error, count - 1)) if error else float(value == 0.0)
    return Mean(value, float(student.ppf(0.975, count - 1)) * error, count), p
