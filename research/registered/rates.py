"""Learning rates that are chosen by trials, from one grid that is extended for all rows alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row")
Job = TypeVar("Job")


def chosen_rates(
    rows: Sequence[Row],
    trial: Callable[[Row, float], Job],
    judged: Callable[[Job], float],
    trials: Mapping[str, Any],
    do: Callable[[Sequence[Job]], object],
) -> tuple[list[float], dict[Row, float]]:
    """Return the rates that were tried, and the best of each row.

    Where a best rate is at an edge of the grid, all rows also try half or twice that rate.

    Args:
        rows: the rows that choose.
        trial: the job of a row at a rate.
        judged: the score of a finished job; larger is better.
        trials: the registered ``rates``, and the maximum number of ``extensions``.
        do: runs jobs.
    """
    rates: list[float] = list(trials["rates"])
    for left in reversed(range(trials["extensions"] + 1)):
        do([trial(row, rate) for row in rows for rate in rates])
        best = {row: max(rates, key=lambda rate, row=row: judged(trial(row, rate))) for row in rows}
        lower = [rates[0] / 2.0] if rates[0] in best.values() else []
        upper = [2.0 * rates[-1]] if rates[-1] in best.values() else []
        if not left or not (lower or upper):
            return rates, best
        rates = [*lower, *rates, *upper]
    raise ValueError(f"extensions={trials['extensions']} must be at least 0")
