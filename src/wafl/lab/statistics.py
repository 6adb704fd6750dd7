"""What runs and tables say together: means with intervals, differences and their tests, ranks, and what diverged.

Demsar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
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


def against(control: str, table: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """P-values of each method's average rank against the control's, adjusted by Holm (Demsar, section 3.2.2)."""
    from scipy.stats import norm

    ranks = average_ranks(table)
    error = math.sqrt(len(ranks) * (len(ranks) + 1) / (6.0 * len(table)))
    others = [method for method in ranks if method != control]
    p = [2.0 * float(norm.sf(abs(ranks[method] - ranks[control]) / error)) for method in others]
    return dict(zip(others, holm(p), strict=True))


def holm(values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number, by Holm's procedure.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    found, so_far = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        so_far = max(so_far, min(1.0, (len(values) - rank) * values[place]))
        found[place] = so_far
    return found


def resampled(differences: Sequence[float], ratio: float) -> tuple[Mean, float]:
    """The mean of differences in splits that overlap, with its interval, and the p-value of there being none.

    The corrected t-test of Nadeau and Bengio, "Inference for the generalization error", Machine Learning 2003; the
    ratio is that of what is tested to what is trained on, in clients.
    """
    from scipy.stats import t as student

    count, value = len(differences), fmean(differences)
    error = math.sqrt(variance(differences) * (1.0 / count + ratio))
    p = 2.0 * float(student.sf(abs(value) / error, count - 1)) if error else float(value == 0.0)
    return Mean(value, float(student.ppf(0.975, count - 1)) * error, count), p


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
