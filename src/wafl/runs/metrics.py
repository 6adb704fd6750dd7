"""``metrics.jsonl``: one line a round and run, appended, and cut back to the checkpoint on a resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wafl.callbacks import Callback, Moment
from wafl.engine.progress import Progress
from wafl.files import write_whole
from wafl.history import History, Record


class MetricsFile(Callback):
    """Appends the rounds of one method's runs; ``points`` says what each run of its sweep is."""

    def __init__(self, path: Path, method: str, points: Sequence[Mapping[str, Any]]) -> None:
        self._path, self._method, self._points = path, method, points

    def cut_back(self, progress: Progress | None) -> None:
        """Leave the lines of other methods, and of this one those of the rounds that the checkpoint holds.

        They are written anew from the checkpoint, so that a line cut short or damaged by a crash is whole again.
        """
        if not self._path.exists() and progress is None:
            return
        others = [line for line in self._lines() if _method_of(line) not in (self._method, None)]
        kept = [] if progress is None else [progress.runs[place].history for place in sorted(progress.runs)]
        write_whole(self._path, "".join(f"{line}\n" for line in (*others, *self.lines(kept))).encode())

    def lines(self, histories: Sequence[History]) -> list[str]:
        """All rounds of the runs, one run a point, as they were appended."""
        rounds = max(map(len, histories), default=0)
        return [
            self._line(place, history[number])
            for number in range(rounds)
            for place, history in enumerate(histories)
            if number < len(history)
        ]

    def on_round(self, moment: Moment) -> None:
        record = replace(moment.record, metrics=moment.metrics)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(moment.place, record) + "\n")

    def _line(self, place: int, record: Record) -> str:
        return json.dumps(
            {
                "method": self._method,
                **self._points[place],
                "round": record.round,
                **record.numbers(),
                **record.metrics,
                "cohort": record.cohort,
                "excluded": record.excluded,
                "attempts": record.attempts,
            }
        )

    def _lines(self) -> list[str]:
        return self._path.read_text(encoding="utf-8", errors="replace").splitlines() if self._path.exists() else []


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All rounds of a run's folder, one dictionary each."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _method_of(line: str) -> str | None:
    try:
        content: Any = json.loads(line)
        return str(content["method"])
    except (ValueError, TypeError, KeyError):
        return None
