"""Signals that ask a process to end: SIGTERM and SIGHUP end it as Ctrl-C does, none in the middle of saving."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Windows has no SIGHUP."""


class Stopped(SystemExit):
    """A signal other than Ctrl-C asked the process to end; uncaught, its exit status is 128 and the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def exit_status(stop: BaseException) -> int:
    """The exit status of a process that Ctrl-C or a signal ended, as shells count.

    >>> exit_status(KeyboardInterrupt()), exit_status(Stopped(signal.SIGTERM))
    (130, 143)
    """
    return stop.code if isinstance(stop, Stopped) and isinstance(stop.code, int) else 128 + signal.SIGINT


class Signals:
    """A block in which the first signal interrupts, and later ones wait until its end, when all is saved.

    SIGTERM and SIGHUP then raise :class:`Stopped`, unless somebody handles or ignores them already, as ``nohup`` does.
    Only the main thread can do that; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._waiting: list[int] = []
        self._busy = False

    def __enter__(self) -> Self:
        self._before = _replaced(self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)
        self._deliver()

    @contextmanager
    def held(self) -> Generator[None, None, None]:
        """A block after whose end a signal takes effect that comes in it."""
        already, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = already
            if not already:
                self._deliver()

    def go_on(self) -> None:
        """Let the next signal interrupt again: somebody caught the last one, and work goes on."""
        self._busy = False
        self._deliver()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._busy:
            self._waiting.append(number)
            return
        self._busy = True
        handler = self._before[number]
        if not callable(handler):
            raise Stopped(number)
        handler(number, frame)
        self._busy = False  # it did not interrupt

    def _deliver(self) -> None:
        if self._waiting:
            number, self._waiting = self._waiting[0], []
            signal.raise_signal(number)


@contextmanager
def stopped_by_signals() -> Generator[None, None, None]:
    """A block that SIGTERM and SIGHUP end as Ctrl-C does: what it has opened and started is closed and ended."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    before = _replaced(stop, [number for number in ENDING if number != signal.SIGINT])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _replaced(handler: Callable[[int, FrameType | None], None], numbers: Any = ENDING) -> dict[int, Any]:
    """Let the handler have these signals, except those that are ignored or not Python's; returns the ones before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in numbers}
    mine = {number: before for number, before in handlers.items() if before not in (signal.SIG_IGN, None)}
    for number in mine:
        signal.signal(number, handler)
    return mine
