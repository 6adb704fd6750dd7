"""Output to the terminal: text from files is shown and never interpreted, and lost output ends no work."""

import errno
import os
import shutil
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

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


GONE = {errno.EPIPE, errno.EIO, errno.ESHUTDOWN}
"""The errors of a pipe whose reader has left, as ``head`` does, or of a terminal that was closed."""


@contextmanager
def lasting_output() -> Generator[None, None, None]:
    """A block whose output goes nowhere once its reader is gone; what cannot be encoded becomes ``?``."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Lasting(stream)) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


class _Lasting:
    """A stream that may lose its reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if hasattr(stream, "reconfigure"):
            cast(Any, stream).reconfigure(errors="replace")

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Send what is still in the buffer, and all that follows, nowhere."""
        if error.errno not in GONE:
            raise error
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
