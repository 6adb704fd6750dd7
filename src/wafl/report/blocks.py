"""What a page is made of: studies, their sections, and the blocks in a section. All of it is plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


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
