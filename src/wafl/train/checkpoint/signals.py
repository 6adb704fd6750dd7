"""Handle signals that end a process: SIGTERM and SIGHUP act like Ctrl-C, and none interrupts saving."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that end a process; Windows has no SIGHUP."""


class Stopped(SystemExit):
    """A signal other than Ctrl-C ended the process; the exit status is 128 plus the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


def exit_status(stop: BaseException) -> int:
    """Return the exit status of a process that Ctrl-C or a signal ended, as in a shell.

    >>> exit_status(KeyboardInterrupt()), exit_status(Stopped(signal.SIGTERM))
    (130, 143)
    """
    return stop.code if isinstance(stop, Stopped) and isinstance(stop.code, int) else 128 + signal.SIGINT


class Signals:
    """A block in which the first signal interrupts, and later signals wait until the block has saved everything.

    SIGTERM and SIGHUP then raise :class:`Stopped`, unless the process already handles or ignores them, as with
    ``nohup``. Only the main thread can handle signals; in other threads this class does nothing.
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
        """Delay signals during the block until its end."""
        already, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = already
            if not already:
                self._deliver()

    def go_on(self) -> None:
        """Allow the next signal to interrupt again, after the last one was caught and work continues."""
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
        self._busy = False  # the signal did not interrupt

    def _deliver(self) -> None:
        if self._waiting:
            number, self._waiting = self._waiting[0], []
            signal.raise_signal(number)


@contextmanager
def stopped_by_signals() -> Generator[None, None, None]:
    """Make SIGTERM and SIGHUP end the block like Ctrl-C, so that it closes its files and ends its processes."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    before = _replaced(stop, [number for number in ENDING if number != signal.SIGINT])
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _replaced(handler: Callable[[int, FrameType | None], None], numbers: Any = ENDING) -> dict[int, Any]:
    """Install a handler for these signals, except ignored or foreign ones; return the previous handlers."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in numbers}
    mine = {number: before for number, before in handlers.items() if before not in (signal.SIG_IGN, None)}
    for number in mine:
        signal.signal(number, handler)
    return mine
