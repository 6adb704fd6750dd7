"""``metrics.jsonl``: one line per round and run, appended, cut back to the checkpoint on resume, and exported."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from wafl.base.extras import require
from wafl.base.files import write_whole
from wafl.base.json_types import parsed_table
from wafl.callbacks import Callback, Moment
from wafl.results.export import refuse_existing
from wafl.results.frames import to_csv
from wafl.results.history import History, Record
from wafl.results.progress import Progress
from wafl.studies.folder import StudyFolder, refuse_links


class MetricsFile(Callback):
    """A callback that appends the rounds of a method's runs, one per point of its sweep, after the lines ``before``."""

    def __init__(self, path: Path, name: str, points: Sequence[Mapping[str, Any]], before: Sequence[str] = ()) -> None:
        self._path, self._method, self._points, self._before = path, name, points, list(before)
        self._ended: set[int] = set()

    def on_start(self, progress: Progress | None) -> None:
        """Write the whole file again, with the rounds that the checkpoint holds, none after it and no damaged line."""
        kept = [] if progress is None else [progress.runs[index].history for index in sorted(progress.runs)]
        self._ended = {index for index, history in enumerate(kept) if history.diverged}
        write_whole(self._path, joined([*self._before, *self.lines(kept)]))

    def lines(self, histories: Sequence[History]) -> list[str]:
        """All rounds of the runs, one history per point, in the order in which they are appended."""
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
        self._append(self._line(moment.index, moment.final_record()))

    def on_progress(self, progress: Progress) -> None:
        for index, run in sorted(progress.runs.items()):
            if run.history.diverged and index not in self._ended:
                self._ended.add(index)
                self._append(self._last_line(index, run.history))

    def _append(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _last_line(self, index: int, history: History) -> str:
        """The last line of a run that diverged: in which round, and why."""
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
    """The content of a file with these lines."""
    return "".join(f"{line}\n" for line in lines).encode()


SUFFIXES = (".csv", ".parquet")


def export_metrics(folder: Path, path: Path) -> Path:
    """Write a study's metrics to a new ``.csv`` or ``.parquet`` file (an extra), lists as JSON; returns its path."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path} has no known format: end its name with {' or '.join(SUFFIXES)}")
    arrow = require("pyarrow", extra="parquet", what=f"{path.name}") if suffix == ".parquet" else None
    refuse_existing(path)
    refuse_links(folder)
    source = folder / "metrics.jsonl"
    if not source.is_file():
        raise FileNotFoundError(f"{folder} has no metrics.jsonl: give a study, such as runs/digits")
    rows = list(_rows(source))
    StudyFolder(folder).check_metrics()
    if not rows:
        raise ValueError(f"{source} is empty: no round has ended yet")
    content = to_csv(rows) if arrow is None else _parquet(rows, arrow)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return path


def _rows(source: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(source.read_bytes().splitlines(), 1):
        try:
            row = parsed_table(line)
        except ValueError as error:
            raise ValueError(
                f"{source}, line {number} is damaged: {error}. If it was interrupted, wafl resume {source.parent} helps"
            ) from error
        yield {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in row.items()}


def _parquet(rows: Sequence[Mapping[str, Any]], arrow: Any) -> bytes:
    names = dict.fromkeys(name for row in rows for name in row)
    table = arrow.table({name: _of_one_type([row.get(name) for row in rows]) for name in names})
    buffer = io.BytesIO()
    require("pyarrow.parquet", extra="parquet", what="Parquet").write_table(table, buffer)
    return buffer.getvalue()


def _of_one_type(values: list[Any]) -> list[Any]:
    """The values of a column, which has one type in Parquet: if words and numbers meet, all become words.

    >>> _of_one_type([2, "inf", None])
    ['2', 'inf', None]
    """
    if not any(isinstance(value, str) for value in values):
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
