"""What runs and tables say together: means with intervals, paired differences, average ranks, and what diverged.

Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from wafl.report.sections import half_width


@dataclass(frozen=True)
class Mean:
    """A mean over seeds or splits, and half the width of its 95% interval (Student's t); None for a single value."""

    value: float
    half: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.value:.1f}" if self.half is None else f"{self.value:.1f} ± {self.half:.1f}"


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of values, with its interval.

    >>> str(mean_of([1.0, 2.0, 3.0]))
    '2.0 ± 2.5'
    """
    return Mean(fmean(values), half_width(values) if len(values) > 1 else None, len(values))


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Mean:
    """The mean difference of values that belong together, such as those of one seed or split."""
    return mean_of([one - other for one, other in zip(ours, theirs, strict=True)])


def average_ranks(table: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Each method's rank, 1 being the highest value, averaged over the data sets; equal values share their ranks.

    The table has, by data set, the value of each method; every data set must have the same methods.
    """
    from scipy.stats import rankdata

    methods = list(next(iter(table.values())))
    ranks = [rankdata([-row[method] for method in methods]) for row in table.values()]
    return {method: fmean(float(row[place]) for row in ranks) for place, method in enumerate(methods)}


def critical_difference(methods: int, data_sets: int) -> float:
    """By how much two average ranks must differ to be significant at 5% (Nemenyi's test).

    >>> round(critical_difference(5, 10), 2)
    1.93
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(0.95, methods, math.inf)) / math.sqrt(2.0)
    return q * math.sqrt(methods * (methods + 1) / (6.0 * data_sets))


def diverged(numbers: Mapping[str, Any]) -> dict[str, str]:
    """Why runs diverged, by their label, which also says how many of its seeds diverged if not all did."""
    rows = [row for row in numbers["rows"] if "label" in row]
    reasons: dict[str, dict[int, str]] = {}
    for row in rows:
        if "diverged" in row:
            reasons.setdefault(row["label"], {})[row["seed"]] = row["diverged"]
    found: dict[str, str] = {}
    for label, by_seed in reasons.items():
        seeds = len({row["seed"] for row in rows if row["label"] == label})
        name = label if len(by_seed) == seeds else f"{label} ({len(by_seed)} of {seeds} seeds)"
        found[name] = next(iter(by_seed.values()))
    return found
