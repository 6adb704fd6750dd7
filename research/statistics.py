"""Summaries of runs and tables: means with intervals, and diverged methods."""

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
    """Return the mean of values, with its interval.

    >>> str(mean_of([1.0, 2.0, 3.0]))
    '2.0 ± 2.5'
    """
    return Mean(fmean(values), half_width(values) if len(values) > 1 else None, len(values))


def diverged(numbers: Mapping[str, Any]) -> dict[str, str]:
    """Return the reasons why runs diverged, by their label, with the number of diverged seeds if not all did."""
    rows = [row for row in numbers["rows"] if "label" in row]
    reasons: dict[str, dict[int, str]] = {}
    for row in rows:
        if "diverged" in row:
            reasons.setdefault(row["label"], {})[row["seed"]] = row["diverged"]
    causes: dict[str, str] = {}
    for label, by_seed in reasons.items():
        seeds = len({row["seed"] for row in rows if row["label"] == label})
        name = label if len(by_seed) == seeds else f"{label} ({len(by_seed)} of {seeds} seeds)"
        causes[name] = next(iter(by_seed.values()))
    return causes
