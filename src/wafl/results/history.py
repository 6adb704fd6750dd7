"""Record a run's history, round by round."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from wafl.base.json_types import as_type
from wafl.results.frames import to_frame, to_html

NUMBERS = ("loss", "seconds", "replies", "agreement", "achieved_radius", "gamma")
"""The numbers that a round records; the last two are only for WAFL."""


@dataclass(frozen=True)
class Record:
    """One round of one run.

    ``loss`` is the cohort's mean objective, and ``achieved_radius`` the root mean transport cost, both on the clients'
    first batches at the round's starting parameters, with clients weighted by lambda. With ``power=1``, no bounds and
    labels that move, the cost is the mean over all local steps. ``seconds`` is the run's share of the round's time;
    runs of a sweep train together. ``client_weights`` is present if they are learned and there are at most 1,000
    clients.

    ``cohort`` contains the clients that were asked to train. ``excluded`` lists the clients that were asked but did not
    count, with reasons (a reason that begins with "loss: " belongs to DRFA's second query). ``attempts`` is the number
    of attempts at the round. ``shortened`` lists the clients whose updates were too long, each with the remaining
    fraction of the length. ``limited`` lists the other limited claims of a client: its weight, its loss or its cost.

    ``agreement`` is the length of the mean update over the mean length of the updates: 1 if clients move in one
    direction, and near 0 at an optimum of different clients; with differential privacy it is hidden. ``metrics``
    contains the values that callbacks added.
    """

    round: int
    loss: float
    seconds: float
    cohort: tuple[int, ...]
    achieved_radius: float | None = None
    gamma: float | None = None
    client_weights: tuple[float, ...] | None = None
    excluded: tuple[tuple[int, str], ...] = ()
    attempts: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    shortened: tuple[tuple[int, float], ...] = ()
    agreement: float | None = None
    limited: tuple[tuple[int, str], ...] = ()

    @property
    def participants(self) -> tuple[int, ...]:
        """The clients of the cohort whose replies counted."""
        missing = {client for client, reason in self.excluded if not reason.startswith("loss: ")}
        return tuple(client for client in self.cohort if client not in missing)

    def numbers(self) -> dict[str, float]:
        """Return the numbers of the round, without the metrics of callbacks."""
        row = {"loss": self.loss, "seconds": self.seconds, "replies": len(self.participants)}
        some = {"agreement": self.agreement, "achieved_radius": self.achieved_radius, "gamma": self.gamma}
        return row | {name: value for name, value in some.items() if value is not None}


class History(Sequence[Record]):
    """All rounds of a run: ``history.column("loss")`` is one quantity; ``diverged`` is the reason of a divergence."""

    def __init__(self, records: Sequence[Record] = (), diverged: str | None = None) -> None:
        self._records = list(records)
        self.diverged = diverged

    def append(self, record: Record) -> None:
        """Add the record of a round."""
        self._records.append(record)

    def column(self, name: str) -> list[Any]:
        """Return one field of all rounds."""
        return [getattr(record, name) for record in self._records]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per round: its numbers, and the metrics of callbacks."""
        return [{"round": record.round, **record.numbers(), **record.metrics} for record in self._records]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with one row per round (needs ``wafl-learn[pandas]``)."""
        return to_frame(self.rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot the loss and, if there is one, the achieved radius by round; save the figure if given a path."""
        return plot_histories({"": self}, path)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the records as plain values."""
        rows = [dict(vars(record)) for record in self._records]  # asdict would copy every number of the cohort
        return rows if self.diverged is None else [*rows, {"diverged": self.diverged}]

    @classmethod
    def from_json(cls, rows: Sequence[dict[str, Any]]) -> Self:
        """Return the history from the values of :meth:`to_json`.

        Raises ValueError with the name of a value that has the wrong type.
        """

        def restore(value: Any) -> Any:
            return tuple(restore(item) for item in value) if isinstance(value, list) else value

        as_type(list[dict[str, Any]], rows, "history")
        diverged = rows[-1].get("diverged") if rows else None
        kept = rows if diverged is None else rows[:-1]
        as_type(str | None, diverged, "diverged")
        as_type(list[Record], kept, "history")
        return cls([Record(**{name: restore(value) for name, value in row.items()}) for row in kept], diverged)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def _repr_html_(self) -> str:
        return to_html(repr(self), self.rows())

    def __repr__(self) -> str:
        last = f", last loss {self._records[-1].loss:.4g}" if self._records else ""
        return f"History({len(self)} rounds{last}{', diverged' if self.diverged else ''})"


def plot_histories(
    histories: Mapping[str, History], path: str | os.PathLike[str] | None = None, method: str = "WAFL"
) -> Any:
    """Plot the loss and the achieved radius of runs of one method by round, one line per run."""
    from wafl.report.plotting import Line, by_round  # only those who draw load it

    panels: dict[str, dict[str, Line]] = {}
    for quantity in ("loss", "achieved_radius"):
        for label, history in histories.items():
            values = history.column(quantity)
            if values and None not in values:
                panels.setdefault(quantity.replace("_", " "), {})[label] = Line(history.column("round"), values)
    if not panels:
        raise ValueError("there is no round to draw: the run ended before its first")
    return by_round(panels, None if path is None else Path(path), method)
