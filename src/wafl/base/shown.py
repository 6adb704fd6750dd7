"""Show the progress of long work: one line on a terminal or in a notebook, and nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from wafl.base.options import naming

if TYPE_CHECKING:
    from rich.progress import Progress as Display

P = ParamSpec("P")
R = TypeVar("R")
LONG = 2.0
"""Seconds after which finished work leaves its line on the screen."""


class Status:
    """The line that shows the progress of one piece of work."""

    def __init__(self, what: str, display: Display) -> None:
        self.what, self.display, self.done = what, display, ""
        self._began = time.monotonic()
        self._bar = display.add_task(what, total=None, numbers="")

    def show(self, done: float, total: float | None, unit: str, numbers: str) -> None:
        """Show ``done`` of ``total`` units, with further numbers."""
        self.done = f"{done:g} {unit}" if total is None else f"{done:g} of {total:g} {unit}"
        self.display.update(self._bar, completed=done, total=total, numbers=f"{self.done} {numbers}".strip())

    def advance(self, unit: str) -> None:
        """Show one more unit, where the total is unknown."""
        self.show(self.display.tasks[self._bar].completed + 1, None, unit, "")

    def end(self) -> None:
        """Print the duration of the work if it was long."""
        seconds = round(time.monotonic() - self._began)
        if seconds >= LONG:
            text = ", ".join(filter(None, (self.done, str(timedelta(seconds=seconds)))))
            self.display.console.print(f"{self.what}: {text}", markup=False, highlight=False)


_status: ContextVar[Status | None] = ContextVar("status", default=None)
_hushed: ContextVar[bool] = ContextVar("hushed", default=False)


def is_shown() -> bool:
    """Return whether the current work has a visible line."""
    return _status.get() is not None


def reached(done: float, total: float | None, unit: str, numbers: str = "") -> None:
    """Report the progress of the current work, if it has a line."""
    if (status := _status.get()) is not None:
        status.show(done, total, unit, numbers)


def one_more(unit: str) -> None:
    """Report one more finished unit of the current work, where the total is unknown."""
    if (status := _status.get()) is not None:
        status.advance(unit)


@contextmanager
def shown(what: str, wanted: bool | None = None) -> Generator[None, None, None]:
    """Show one line for all work in a block; ``wanted=None`` means only on a terminal or in a notebook."""
    here = sys.stderr.isatty() or "ipykernel" in sys.modules
    visible = not _hushed.get() and (here if wanted is None else wanted)
    hush = _hushed.set(True)
    display = _display() if visible else None
    status = None if display is None else Status(what, display)
    mine = _status.set(status)
    try:
        with display or nullcontext():
            yield
        if status is not None:
            status.end()
    finally:
        _status.reset(mine)
        _hushed.reset(hush)


def _display() -> Display:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(bar_width=20))
    numbers = TextColumn("{task.fields[numbers]}", markup=False)
    timing = (TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, *timing, numbers, console=Console(stderr=True), transient=True)


def shows(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that it shows a line if its argument ``progress`` allows (:func:`shown`)."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        named = naming(function)

        @wraps(function)
        def showing(*args: P.args, **kwargs: P.kwargs) -> R:
            wanted = kwargs.get("progress")
            with shown(what, None if wanted is None else bool(wanted)):
                return named(*args, **kwargs)

        return showing

    return decorate
