"""Define a page as plain data (studies, sections, blocks, tested methods), and its self-contained HTML file."""

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
    """A cell of a table: a text, and ``small`` print below it, such as an interval.

    A column is sorted by each cell's ``value``, or by the text without one. The best cell is emphasized. ``color`` is
    the color of a dot before the text, ``link`` is the text's target, and ``part``, from 0 to 1, is the filled fraction
    of a bar.
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
        """The sort key of the cell."""
        return self.text if self.value is None else self.value


@dataclass(frozen=True)
class Table:
    """A table that can be sorted by each of its columns, whose headings are ``columns``."""

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Cell]], caption: str = "") -> Self:
        """Make a table from columns by heading; omit columns with only empty cells."""
        filled = {heading: cells for heading, cells in columns.items() if not cells or any(cell.text for cell in cells)}
        return cls(list(filled), list(zip(*filled.values(), strict=True)), caption)


@dataclass(frozen=True)
class Figure:
    """A chart in one or several named views, one of which is visible.

    A view is ``{"data": [...], "layout": {...}}`` for Plotly.
    """

    kind: ClassVar[str] = "figure"
    views: Mapping[str, Mapping[str, Any]]
    caption: str = ""


@dataclass(frozen=True)
class Pictures:
    """Rows of images: each has a name, and one strip, a PNG as a data URI."""

    kind: ClassVar[str] = "pictures"
    strips: Mapping[str, str]
    caption: str = ""


@dataclass(frozen=True)
class Reading:
    """A number at a slider's position: its value, its unit (``%`` or nothing), and small print, such as its owner.

    Between two stops, a page interpolates their numbers. A ``bound`` is also valid before its stop, so there the page
    shows the next stop's number.
    """

    value: float
    unit: str = ""
    small: str = ""
    bound: bool = False


@dataclass(frozen=True)
class Stop:
    """A position of a slider with computed numbers, by name, perhaps with pictures; the label names the position."""

    label: str
    at: float
    numbers: Mapping[str, Reading]
    pictures: Pictures | None = None


@dataclass(frozen=True)
class Walk:
    """The content of a slider: stops by their positions, and a figure with a line at the slider."""

    name: str
    stops: Sequence[Stop]
    figure: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Walks:
    """Several walks, one of which is chosen."""

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
    """A sentence, such as an explanation of missing content."""

    kind: ClassVar[str] = "note"
    text: str


Block = Table | Figure | Pictures | Walks | Code | Note


@dataclass(frozen=True)
class Section:
    """A heading, a sentence of introduction, and blocks."""

    title: str
    lead: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Study:
    """The content of a page about one study, with its sections in order.

    ``facts`` describe the study in a few words. ``highlights`` are its most important numbers, each with a heading and
    its subject. In a list of studies, ``link`` leads to the study's page, and ``cells`` are the cells of its row, by
    column.
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
    """A title, studies, and their common facts."""

    title: str
    studies: Sequence[Study]
    together: Sequence[Section] = ()


@dataclass(frozen=True)
class Conditions:
    """The facts about a page's numbers in captions: data and model, the attack, and other tests.

    ``shift`` describes the shift of unseen clients' examples, ``certified`` the ball of the certified numbers.
    """

    data: str = ""
    model: str = ""
    attack: str = ""
    shift: str = ""
    certified: str = ""

    def words(self, *fields: str) -> str:
        """Return the sentences of a caption about these fields, without empty ones."""
        titles = {"attack": "Attack", "shift": "Shift of unseen clients", "data": "Data", "model": "Model"}
        return "".join(f" {titles[name]}: {getattr(self, name)}." for name in fields if getattr(self, name))


@dataclass(frozen=True)
class Tested:
    """The row of a method.

    It has one value per seed on clean test data, by the share of attacked clients, and for the worst client; the
    seconds of training; the number of diverged runs; and the study, if there are several. It also has the bounds in a
    ball, per seed, with the line that explains estimates, and the values on unseen clients. A row has the color of its
    ``method``.
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
        """The label, with the study if there are several."""
        return f"{self.label} · {self.study}" if self.study else self.label


PAGE = "a report page"


def check_page_packages() -> None:
    """Raise ValueError if a package for pages is missing; call it before computing a page's numbers."""
    for module in ("jinja2", "plotly"):
        require(module, extra="report", what=PAGE)


def write_page(page: Page, path: Path) -> Path:
    """Write the page to a file, replacing an earlier file as a whole, and return its path."""
    text = as_html(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())
    return path


def as_html(page: Page, *, live: bool = False) -> str:
    """Return the page as text; if ``live``, a server keeps it up to date and provides the scripts."""
    plotly = "" if live else packed_plotly()
    return _template().render(page=page, live=live, css=_text_of("page.css"), js=_text_of("page.js"), plotly=plotly)


def plotly_script() -> bytes:
    """Return Plotly's JavaScript from its Python package."""
    return (files(require("plotly", extra="report", what=PAGE)) / "package_data" / "plotly.min.js").read_bytes()


@cache
def packed_plotly() -> str:
    """Return Plotly's JavaScript, compressed to a third of its size; browsers unpack it."""
    return base64.b64encode(gzip.compress(plotly_script(), mtime=0)).decode()


def plain(value: Any) -> Any:
    """Return the value for JSON, with None in place of infinities and NaN."""
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
