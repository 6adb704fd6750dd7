"""Compute the progress and pace of a study's method, for a terminal and a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import fmean
from typing import Any

NUMBERS = ("loss", "accuracy", "achieved_radius", "test_loss")
Lines = Sequence[Mapping[str, Any]]
"""Lines of the metrics, in order."""
LARGEST = 1e100
"""The bound on numbers from untrusted files in sums and means."""


@dataclass(frozen=True)
class Pace:
    """A method's progress and pace; the numbers are means over its runs, from their last rounds."""

    method: str
    round: int
    rounds: int
    rounds_per_second: float | None = None
    seconds_left: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    achieved_radius: float | None = None
    test_loss: float | None = None

    @property
    def left(self) -> str:
        """The remaining time in words; empty if there is none or it is unknown."""
        seconds = min(self.seconds_left or 0.0, 1e10)  # dates have a maximum
        return str(timedelta(seconds=round(seconds))) if seconds > 0.0 else ""

    @property
    def numbers(self) -> str:
        """The known numbers in words.

        >>> Pace("WAFL", 5, 10, 2.5, 2.0, 0.4312, 0.912, 0.25).numbers
        '2.5 rounds/s, 0:00:02 left, loss 0.4312, accuracy 91.2%, radius 0.25'
        """
        known = {
            "{:.3g} rounds/s": self.rounds_per_second,
            "{} left": self.left or None,
            "loss {:.4g}": self.loss,
            "accuracy {:.1%}": self.accuracy,
            "test loss {:.4g}": self.test_loss if self.accuracy is None else None,
            "radius {:.3g}": self.achieved_radius,
        }
        return ", ".join(text.format(value) for text, value in known.items() if value is not None)


def pace_of(method: str, rounds: int, count: int, lines: Lines) -> Pace:
    """Return the pace of a method with ``rounds`` rounds and ``count`` runs.

    A run that diverged or stopped early has no rounds left.
    """
    last: dict[str, dict[str, Any]] = {}
    for row in lines:
        numbers = {name: row[name] for name in NUMBERS if _is_number(row.get(name))}
        stage = {name: row[name] for name in ("round", "diverged") if name in row}
        last.setdefault(str(point_of(row)), {}).update(stage | numbers)
    now, count = (lines[-1]["round"] if lines else 0), max(count, len(last))
    ended = sum("diverged" in run or run["round"] + 1 < now for run in last.values())
    others = sum(run["round"] + 1 for run in last.values() if "diverged" not in run and run["round"] + 1 >= now)
    reached = max(0, min((others + rounds * ended) // count, rounds))
    seconds = sum(row["seconds"] for row in lines if _is_number(row.get("seconds")))
    rate = len(lines) / count / seconds if seconds > 0 else None
    means = {name: fmean(values) for name in NUMBERS if (values := [run[name] for run in last.values() if name in run])}
    return Pace(method, reached, rounds, rate, None if rate is None else (rounds - reached) / rate, **means)


def point_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the swept values and the seed of a line's run, which are between method and round."""
    keys = list(row)
    return {key: row[key] for key in keys[1 : keys.index("round")]}


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that sums and means can use."""
    return isinstance(value, int | float) and -LARGEST < value < LARGEST
