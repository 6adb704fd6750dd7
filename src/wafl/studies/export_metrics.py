"""``metrics.jsonl`` as a table for other programs: CSV or Parquet, one row per round and run."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wafl.base.extras import require
from wafl.base.files import write_whole
from wafl.base.json_types import parsed_table
from wafl.results.export import refuse_existing
from wafl.studies.folder import StudyFolder, refuse_links

SUFFIXES = (".csv", ".parquet")


def export_metrics(folder: Path, path: Path) -> Path:
    """Write the metrics of a study to a new ``.csv`` or ``.parquet`` file (the extra ``parquet``); returns its path.

    The columns are all names that any round has, in order of first appearance. Lists are JSON text, and a cell whose
    round has no such value is empty.
    """
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
    columns: dict[str, list[Any]] = {}
    for name in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(name) for row in rows]
        columns[name] = [json.dumps(value) if isinstance(value, list | dict) else value for value in values]
    content = _csv(columns) if arrow is None else _parquet(columns, arrow)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)
    return path


def _rows(source: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(source.read_bytes().splitlines(), 1):
        try:
            row = parsed_table(line)
        except ValueError as error:
            raise ValueError(
                f"{source}, line {number} is damaged: {error}. If the study was interrupted, "
                f"wafl resume {source.parent} restores it"
            ) from error
        yield row


def _csv(columns: dict[str, list[Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def _parquet(columns: dict[str, list[Any]], arrow: Any) -> bytes:
    table = arrow.table({name: _of_one_type(values) for name, values in columns.items()})
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
