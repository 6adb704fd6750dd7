"""Detection of a suspended machine: a virtual machine may be paused, or moved, in the middle of a test."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

TICK = 0.5


@dataclass
class Pauses:
    """A clock that is read every half second while this is open; `longest` is the longest time between two readings."""

    longest: float = 0.0
    _closed: threading.Event = field(default_factory=threading.Event)
    _watch: threading.Thread | None = None

    def __enter__(self) -> Pauses:
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._watch:
            self._watch.join()

    def _look(self) -> None:
        last = time.time()
        while not self._closed.wait(TICK):
            now = time.time()
            self.longest, last = max(self.longest, now - last), now
