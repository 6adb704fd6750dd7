"""What runs and tables say together: means with intervals, differences and their tests, and what diverged."""

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
