"""Convert rows of plain values to a pandas frame, to CSV, or to a table for a notebook."""

import csv
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import Any

from wafl.base.extras import require


def to_frame(make_rows: Callable[[], Sequence[Mapping[str, Any]]]) -> Any:
    """Return a ``pandas.DataFrame``; rows are made only if pandas, an optional package, is installed."""
    pandas = require("pandas", extra="pandas", what="to_pandas")
    return pandas.DataFrame(list(make_rows()))


def to_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a CSV file with all columns of any row; missing values are empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def varying(rows: Sequence[Mapping[str, Any]], keep: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the rows with only the columns that differ or are in ``keep``; a single row keeps all columns.

    >>> varying([{"run": "a", "seed": 0, "loss": 1.0}, {"run": "a", "seed": 0, "loss": 2.0}], keep=["run"])
    [{'run': 'a', 'loss': 1.0}, {'run': 'a', 'loss': 2.0}]
    """
    names = dict.fromkeys(name for row in rows for name in row)
    differ = [name for name in names if name in keep or len(rows) < 2 or len({str(row.get(name)) for row in rows}) > 1]
    return [{name: row[name] for name in differ if name in row} for row in rows]


def to_html(title: str, rows: Sequence[Mapping[str, Any]], shown: int = 20) -> str:
    """Return the first rows as an HTML table below a title, with the number of omitted rows.

    >>> to_html("Two <rounds>", [{"round": 0, "loss": 1.23456}])
    '<p>Two &lt;rounds&gt;</p><table><tr><th>round</th><th>loss</th></tr><tr><td>0</td><td>1.235</td></tr></table>'
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(row.get(name)))}</td>" for name in names) + "</tr>" for row in rows[:shown]
    )
    more = f"<p>and {len(rows) - shown} more rows</p>" if len(rows) > shown else ""
    return f"<p>{escape(title)}</p><table><tr>{head}</tr>{body}</table>{more}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
