"""Which runs of an experiment diverged, and why."""

from collections.abc import Mapping
from typing import Any


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
