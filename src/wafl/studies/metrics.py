"""``metrics.jsonl``: one line per round and run, appended, and cut back to the checkpoint on resume."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wafl.base.files import write_whole
from wafl.callbacks import Callback, Moment
from wafl.results.history import History, Record
from wafl.results.progress import Progress


class MetricsFile(Callback):
    """A callback that appends the rounds of one method's runs to a file.

    ``points`` are what is swept, one combination per run; ``before`` are the lines of the methods that come first.
    """

    def __init__(
        self, path: Path, method: str, points: Sequence[Mapping[str, Any]], before: Sequence[str] = ()
    ) -> None:
        self._path, self._method, self._points, self._before = path, method, points, list(before)
        self._ended: set[int] = set()

    def on_start(self, progress: Progress | None) -> None:
        """Keep the rounds that the checkpoint holds, and none that came after it.

        The whole file is written again, which repairs a line that a crash cut short or damaged.
        """
        kept = [] if progress is None else [progress.runs[place].history for place in sorted(progress.runs)]
        self._ended = {place for place, history in enumerate(kept) if history.diverged}
        write_whole(self._path, joined([*self._before, *self.lines(kept)]))

    def lines(self, histories: Sequence[History]) -> list[str]:
        """All rounds of the runs, one history per point, in the order in which they are appended."""
        found: list[str] = []
        for number in range(max(map(len, histories), default=-1) + 1):
            for place, history in enumerate(histories):
                if number < len(history):
                    found.append(self._line(place, history[number]))
            for place, history in enumerate(histories):
                if number == len(history) and history.diverged:
                    found.append(self._last_line(place, history))
        return found

    def on_round(self, moment: Moment) -> None:
        self._append(self._line(moment.place, moment.final_record()))

    def on_progress(self, progress: Progress) -> None:
        for place, run in sorted(progress.runs.items()):
            if run.history.diverged and place not in self._ended:
                self._ended.add(place)
                self._append(self._last_line(place, run.history))

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _last_line(self, place: int, history: History) -> str:
        """The last line of a run that diverged: in which round, and why."""
        about = {"method": self._method, **self._points[place], "round": len(history)}
        return json.dumps({**about, "diverged": history.diverged})

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
                **({"shortened": record.shortened} if record.shortened else {}),
                **({"limited": record.limited} if record.limited else {}),
            }
        )


def joined(lines: Sequence[str]) -> bytes:
    """The content of a file with these lines."""
    return "".join(f"{line}\n" for line in lines).encode()
