"""Output that nobody reads, or that a terminal cannot show, ends no work."""

import errno
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

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
