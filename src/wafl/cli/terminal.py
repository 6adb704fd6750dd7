"""What is printed: names and messages from files are shown, and never obeyed."""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from wafl.base.describe import visible


class _Shown(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def make_console(**options: Any) -> Console:
    """A console that shows control characters as question marks."""
    return _Shown(**options)


def tell(text: str) -> None:
    """Print text to stdout as it is: no markup, no emoji codes, no line breaks."""
    make_console(highlight=False, emoji=False).print(text, markup=False, soft_wrap=True)


def say(text: str, color: str | None = None) -> None:
    """Print a line to stderr."""
    typer.secho(visible(text), fg=color, err=True)


def program_name() -> str:
    """Return how to call this program: ``wafl`` if the shell finds it, otherwise the path that it was called by."""
    program = Path(sys.argv[0])
    return "wafl" if program.name != "wafl" or shutil.which("wafl") else str(program)
