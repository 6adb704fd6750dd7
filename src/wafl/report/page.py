"""A page as plain data (studies, sections, blocks, tested methods), and its HTML file, which fetches nothing."""

import base64
import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self

from wafl.base.extras import require
from wafl.base.files import write_whole


@dataclass(frozen=True)
class Cell:
    """What a table shows in one place: a text, and ``small`` print below it, such as an interval.

    A column is sorted by each cell's ``value``, or by the text without one. The best cell is emphasized, a ``color`` is
    that of a dot in front of the text, a ``link`` is where the text leads, and a ``part`` from 0 to 1 is how much of a
    bar is filled.
    """

    text: str
    value: float | str | None = None
    small: str = ""
    best: bool = False
    color: str = ""
    link: str = ""
    part: float | None = None

    @property
    def order(self) -> float | str:
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Table:
    """A table that can be sorted by each of its columns, which ``columns`` gives the headings of."""

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Cell]], caption: str = "") -> Self:
        """Make a table from columns by heading; leave out columns whose cells are all empty."""
        filled = {heading: cells for heading, cells in columns.items() if not cells or any(cell.text for cell in cells)}
        return cls(list(filled), list(zip(*filled.values(), strict=True)), caption)


@dataclass(frozen=True)
class Figure:
    """A chart in one or several named views, of which one is shown: ``{"data": [...], "layout": {...}}`` for Plotly."""

    kind: ClassVar[str] = "figure"
    views: Mapping[str, Mapping[str, Any]]
    caption: str = ""


@dataclass(frozen=True)
class Pictures:
    """Rows of images: each has a name, and is one strip, a PNG as a data URI."""

    kind: ClassVar[str] = "pictures"
    strips: Mapping[str, str]
    caption: str = ""


@dataclass(frozen=True)
class Reading:
    """A number where a slider is: its value, what it is in (``%`` or nothing), and small print, such as whose it is.

    Between two stops a page shows about what lies between their numbers. A ``bound`` holds for everything before its
    stop as well, so there the page shows that of the next stop.
    """

    value: float
    unit: str = ""
    small: str = ""
    bound: bool = False


@dataclass(frozen=True)
class Stop:
    """A place on a slider where numbers were computed, by name, maybe with pictures; the label says the place."""

    label: str
    at: float
    numbers: Mapping[str, Reading]
    pictures: Pictures | None = None


@dataclass(frozen=True)
class Walk:
    """What a slider moves through: stops by their places, and a figure with a line where the slider is."""

    name: str
    stops: Sequence[Stop]
    figure: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Walks:
    """Several walks, of which one is chosen."""

    kind: ClassVar[str] = "walks"
    walks: Sequence[Walk]
    caption: str = ""


@dataclass(frozen=True)
class Code:
    """Text to read and to copy, such as a command; a long one is folded below its title."""

    kind: ClassVar[str] = "code"
    text: str
    title: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Note:
    """A sentence, such as what is missing and why."""

    kind: ClassVar[str] = "note"
    text: str


Block = Table | Figure | Pictures | Walks | Code | Note


@dataclass(frozen=True)
class Section:
    """A heading, a sentence that says what to look for, and blocks."""

    title: str
    lead: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Study:
    """Everything that a page shows about one study, its sections in the order of the page.

    ``facts`` say in a few words what the study is about; ``highlights`` are its most important numbers, each with a
    heading and what it belongs to. In a list of studies, ``link`` leads to the study's own page, and ``cells`` are what
    its row shows, by column.
    """

    name: str
    sections: Sequence[Section]
    state: str = ""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    highlights: Sequence[tuple[str, str, str]] = ()
    link: str = ""
    cells: Mapping[str, Cell] = field(default_factory=dict[str, Cell])


@dataclass(frozen=True)
class Page:
    """A title, studies, and what they have in common."""

    title: str
    studies: Sequence[Study]
    together: Sequence[Section] = ()


@dataclass(frozen=True)
class Conditions:
    """What captions say about the numbers on a page: data and model, the attack, and what else was tested.

    ``shift`` describes how unseen clients' examples were shifted, ``certified`` the ball of the certified numbers.
    """

    data: str = ""
    model: str = ""
    attack: str = ""
    shift: str = ""
    certified: str = ""

    def words(self, *fields: str) -> str:
        """Return the sentences of a caption about these fields, without those that are empty."""
        titles = {"attack": "Attack", "shift": "Shift of unseen clients", "data": "Data", "model": "Model"}
        return "".join(f" {titles[name]}: {getattr(self, name)}." for name in fields if getattr(self, name))


@dataclass(frozen=True)
class Tested:
    """The row of a method: one value per seed on clean test data, by the share of attacked clients, and for the worst
    client; the seconds of training; how many runs diverged; the study that it is from, if there are several; the bounds
    in a ball, per seed, and the line that explains why they are only estimates, if they are; and the values on unseen
    clients.

    A row has the color of its ``method``.
    """

    label: str
    method: str
    clean: Sequence[float] = ()
    attacked: Mapping[float, Sequence[float]] = field(default_factory=dict[float, Sequence[float]])
    worst: Sequence[float] = ()
    seconds: float | None = None
    diverged: int = 0
    study: str = ""
    certified: Sequence[float] = ()
    caveat: str = ""
    unseen: Sequence[float] = ()

    @property
    def name(self) -> str:
        return f"{self.label} · {self.study}" if self.study else self.label


PAGE = "a report page"


def check_page_packages() -> None:
    """Raise a ValueError if a package that pages need is missing; call it before the numbers of a page are computed."""
    for module in ("jinja2", "plotly"):
        require(module, extra="report", what=PAGE)


def write_page(page: Page, path: Path) -> Path:
    """Write the page to a file, which replaces an earlier one as a whole; returns its path."""
    text = as_html(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    return path


def as_html(page: Page, *, live: bool = False) -> str:
    """The page as text; if ``live``, a server keeps it up to date, and has the scripts too."""
    plotly = "" if live else packed_plotly()
    return _template().render(page=page, live=live, css=_text_of("page.css"), js=_text_of("page.js"), plotly=plotly)


def plotly_script() -> bytes:
    """Plotly's JavaScript, from its Python package."""
    return (files(require("plotly", extra="report", what=PAGE)) / "package_data" / "plotly.min.js").read_bytes()


@cache
def packed_plotly() -> str:
    """Plotly's JavaScript, compressed: a third of its size, and browsers unpack it."""
    return base64.b64encode(gzip.compress(plotly_script(), mtime=0)).decode()


def plain(value: Any) -> Any:
    """The same value for JSON, with None in place of what JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _text_of(name: str) -> str:
    return (files("wafl.report") / name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    jinja2 = require("jinja2", extra="report", what=PAGE)
    loader = jinja2.FunctionLoader(_text_of)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["plain"] = plain
    return environment.get_template("page.html")
