"""Format tables as text for ``print`` and the command line."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from wafl.base.conditions import SPLITS, unseen_clients
from wafl.base.describe import visible


def as_text(table: RenderableType) -> str:
    """Return a table as plain text, as wide as the terminal."""
    console = Console(file=io.StringIO(), color_system=None, force_jupyter=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return visible(captured.get()).rstrip("\n")


def generalization_table(
    rows: Mapping[tuple[str, str], Mapping[str, Any]], accuracy: bool, title: str = unseen_clients()
) -> Table:
    """Return a table of training, test and unseen data with gaps, by method and share of attacked clients."""
    shares = any(share for _, share in rows)
    gaps = {"out_of_sample_gap": "train-\ntest", "participation_gap": "test-\nunseen"}
    if shares:  # no room for both
        del gaps["out_of_sample_gap"]
    headers = (*(["attacked"] if shares else []), *SPLITS, "95%\ninterval", "worst\n10%", *gaps.values())
    caption = (
        "train and test: data of the clients that trained. unseen: clients that took no part in training, with a 95% "
        "interval (bootstrap over clients) and the mean of their worst tenth. A gap is positive where the model does "
        "worse."
    )
    table = dense_table("method", headers, title=title, caption=caption)
    show = Shown(accuracy, percent=True)
    before = ""
    for (label, share), row in rows.items():
        table.add_row(
            Name(label) if label != before else "",
            *([share] if shares else []),
            *(show.spread(row[split]["seeds"]) for split in SPLITS),
            show.interval(row["unseen"]["interval"]),
            show(row["unseen"]["worst_tenth"]["mean"]),
            *(show(row[gap]["mean"]) for gap in gaps),
        )
        before = label
    return table


@dataclass(frozen=True)
class Name:
    """The name of a swept run; in a narrow terminal it wraps, so that no number is cut."""

    label: str

    @property
    def _parts(self) -> list[str]:
        return re.split(r"(?=-\w+=)|(?<==)", self.label)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(len, self._parts)), len(self.label)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in self._parts:
            if lines[-1] and len(lines[-1] + part) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(lines), overflow="fold")


@dataclass(frozen=True)
class Shown:
    """The format of numbers: losses with three digits, accuracies in percent.

    ``percent`` means that they are already.
    """

    accuracy: bool
    percent: bool = False

    def __call__(self, value: float) -> str:
        """Format a number."""
        if not self.accuracy:
            return f"{value:.3g}"
        return f"{value if self.percent else 100.0 * value:.1f}"

    def spread(self, values: Sequence[float]) -> str:
        """Format the mean and the standard deviation of values."""
        return self(fmean(values)) + (f"±{self(stdev(values))}" if len(values) > 1 else "")

    def interval(self, ends: Sequence[float]) -> str:
        """Format the ends of an interval."""
        return "-".join(map(self, ends))


def plain_table(*columns: str, title: str = "", caption: str = "", padding: tuple[int, ...] = (0, 1, 0, 0)) -> Table:
    """Return an empty table with these columns; numbers, which are never wrapped, have names that begin with ``>``."""
    table = Table(
        title=escape(title),
        title_justify="left",
        caption=escape(caption),
        caption_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=padding,  # pyright: ignore[reportArgumentType]
        pad_edge=False,
    )
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table


def dense_table(first: str, numbers: Sequence[str], *, title: str = "", caption: str = "") -> Table:
    """Return an empty table of names and numbers that takes little space."""
    return plain_table(first, *(f">{name}" for name in numbers), title=title, caption=caption, padding=(0, 0))
