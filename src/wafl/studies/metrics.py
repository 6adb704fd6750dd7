"""Write ``metrics.jsonl``: one line per round and run, appended, and truncated to the checkpoint on resume."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wafl.base.files import write_whole
from wafl.callbacks import Callback, Moment
from wafl.results.history import History, Record
from wafl.results.progress import Progress


class MetricsFile(Callback):
    """A callback that appends the rounds of a method's runs, one per point of its sweep, after the lines ``before``."""

    def __init__(self, path: Path, name: str, points: Sequence[Mapping[str, Any]], before: Sequence[str] = ()) -> None:
        self._path, self._method, self._points, self._before = path, name, points, list(before)
        self._ended: set[int] = set()

    def on_start(self, progress: Progress | None) -> None:
        """Rewrite the file with exactly the rounds of the checkpoint, without damaged lines."""
        kept = [] if progress is None else [progress.runs[index].history for index in sorted(progress.runs)]
        self._ended = {index for index, history in enumerate(kept) if history.diverged}
        write_whole(self._path, joined([*self._before, *self.lines(kept)]))

    def lines(self, histories: Sequence[History]) -> list[str]:
        """Return all rounds of the runs, one history per point, in the order of appending."""
        lines: list[str] = []
        for number in range(max(map(len, histories), default=-1) + 1):
            for index, history in enumerate(histories):
                if number < len(history):
                    lines.append(self._line(index, history[number]))
            for index, history in enumerate(histories):
                if number == len(history) and history.diverged:
                    lines.append(self._last_line(index, history))
        return lines

    def on_round(self, moment: Moment) -> None:
        """Append the line of a round."""
        self._append(self._line(moment.index, moment.final_record()))

    def on_progress(self, progress: Progress) -> None:
        """Append the last line of runs that diverged."""
        for index, run in sorted(progress.runs.items()):
            if run.history.diverged and index not in self._ended:
                self._ended.add(index)
                self._append(self._last_line(index, run.history))

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _last_line(self, index: int, history: History) -> str:
        """Return the last line of a run that diverged, with the round and the reason."""
        about = {"method": self._method, **self._points[index], "round": len(history)}
        return json.dumps({**about, "diverged": history.diverged})

    def _line(self, index: int, record: Record) -> str:
        return json.dumps(
            {
                "method": self._method,
                **self._points[index],
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
    """Return the content of a file with these lines."""
    return "".join(f"{line}\n" for line in lines).encode()
