"""``metrics.jsonl``: one line a round and run, appended, and cut back to the checkpoint on a resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wafl.core.files import write_whole
from wafl.core.history import History, Record
from wafl.engine.callbacks import Callback, Moment
from wafl.engine.progress import Progress


class MetricsFile(Callback):
    """Appends the rounds of one method's runs, behind the lines of the methods ``before`` it.

    ``points`` says what each run of its sweep is.
    """

    def __init__(
        self, path: Path, method: str, points: Sequence[Mapping[str, Any]], before: Sequence[str] = ()
    ) -> None:
        self._path, self._method, self._points, self._before = path, method, points, list(before)

    def on_start(self, progress: Progress | None) -> None:
        """Keep the rounds that the checkpoint holds, and none that came after it.

        The file is written anew, so that a line cut short or damaged by a crash is whole again.
        """
        kept = [] if progress is None else [progress.runs[place].history for place in sorted(progress.runs)]
        write_whole(self._path, joined([*self._before, *self.lines(kept)]))

    def lines(self, histories: Sequence[History]) -> list[str]:
        """All rounds of the runs, one run a point, as they are appended."""
        rounds = max(map(len, histories), default=0)
        return [
            self._line(place, history[number])
            for number in range(rounds)
            for place, history in enumerate(histories)
            if number < len(history)
        ]

    def on_round(self, moment: Moment) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(moment.place, moment.final_record()) + "\n")

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


def joined(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
