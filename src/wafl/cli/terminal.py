"""Handle the terminal: output that never interprets text from files, one-line errors, shared options, numbers."""

import errno
import math
import os
import shutil
import sys
import warnings
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typer import Argument, Option

from wafl.base.describe import visible
from wafl.base.errors import DivergedError, TooFewRepliesError, UnboundedError


class _Shown(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def make_console(**options: Any) -> Console:
    """Return a console that shows control characters as question marks."""
    return _Shown(**options)


def tell(text: str) -> None:
    """Print text to stdout unchanged: no markup, no emoji codes, no line breaks."""
    make_console(highlight=False, emoji=False).print(text, markup=False, soft_wrap=True)


def say(text: str, color: str | None = None) -> None:
    """Print a line to stderr."""
    typer.secho(visible(text), fg=color, err=True)


def program_name() -> str:
    """Return the command for this program: ``wafl`` if the shell finds it, otherwise its path."""
    program = Path(sys.argv[0])
    return "wafl" if program.name != "wafl" or shutil.which("wafl") else str(program)


GONE = {errno.EPIPE, errno.EIO, errno.ESHUTDOWN}
"""The errors of a pipe without a reader, as after ``head``, or of a closed terminal."""


@contextmanager
def lasting_output() -> Generator[None, None, None]:
    """Discard the block's output once its reader is gone; characters without an encoding become ``?``."""
    output, errors = (cast(TextIO, _Lasting(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            yield
        finally:
            output.flush()
            errors.flush()


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
        """Discard the buffer and all later output if the reader is gone; raise any other error."""
        if error.errno not in GONE:
            raise error
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def one_line_errors() -> Generator[None, None, None]:
    """Report bad input, or training that cannot continue, in one line, and exit with status 2."""
    try:
        yield
    except (ValueError, OSError, DivergedError, UnboundedError, TooFewRepliesError) as error:
        say(f"Error: {error}", typer.colors.RED)
        raise typer.Exit(2) from error
    except MemoryError as error:
        say("Error: this needs more memory than is available: check the files", typer.colors.RED)
        raise typer.Exit(2) from error


Changes = Annotated[list[str] | None, Option("--set", metavar="KEY=VALUE")]
StudyOrRun = Annotated[Path, Argument(metavar="STUDY|RUN")]
OneStudy = Annotated[Path, Argument(metavar="STUDY")]
PublicKey = Annotated[Path | None, Option("--key")]
Trust = Annotated[bool, Option("--trust")]


@contextmanager
def reading(trust: bool) -> Generator[None, None, None]:
    """Report errors and warnings in one line; a study's code runs only with ``trust``, or if the user allows it."""
    from wafl.config.own_code import asking

    def allow(what: str) -> bool:
        return trust or (on_a_terminal() and typer.confirm(visible(f"{what}. Run it"), err=True))

    with one_line_errors(), asking(allow), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: say(f"Warning: {message}", typer.colors.YELLOW)
        yield


def on_a_terminal() -> bool:
    """Return whether the input is a terminal."""
    return sys.stdin.isatty()


def parse_numbers(name: str, text: str) -> list[float]:
    """Parse numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name}={text!r} must be numbers with commas between them, such as 0.2,0.4") from None


def parse_choice(name: str, text: str, values: Collection[float]) -> float:
    """Parse a number that must be one of ``values``."""
    names = {f"{value:g}": value for value in values}
    if text not in names:
        raise ValueError(f"{name}={text} must be one of {', '.join(names)}")
    return names[text]


def parse_norm(text: str) -> float:
    """Parse a norm: 1, 2 or inf."""
    return parse_choice("norm", text, (1, 2, math.inf))
