"""Append entries to a file, each with its length and checksum."""

import os
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from wafl.base.files import sync

FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class Journal:
    """A file of entries, of which the first ``size`` bytes are valid.

    The next :meth:`append` cuts off an incomplete entry that a crash left behind. An entry is a line with its length
    and its checksum, followed by its content.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        self.path, self.size = path, size

    def append(self, entries: Iterable[bytes]) -> None:
        """Append entries, which survive a crash after this returns."""
        new = not self.path.exists()
        with open(os.open(self.path, FLAGS, 0o666), "wb") as file:
            if not new:
                file.truncate(self.size)
            file.seek(self.size)
            for entry in entries:
                file.write(b"%d %s\n%s\n" % (len(entry), sha256(entry).hexdigest().encode(), entry))
            file.flush()
            os.fsync(file.fileno())
            self.size = file.tell()
        if new:
            sync(self.path.parent)

    def read(self) -> Iterator[bytes]:
        """Yield the valid entries; raise ValueError at an entry that is damaged or missing."""
        if self.size == 0:
            return
        with self.path.open("rb") as file:
            while (offset := file.tell()) < self.size:
                length, _, checksum = file.readline(100).strip().partition(b" ")
                if not length.isdigit() or offset + int(length) > self.size:
                    raise ValueError(f"{self.path.name} is damaged at byte {offset}")
                entry = file.read(int(length))
                if file.read(1) != b"\n" or sha256(entry).hexdigest().encode() != checksum:
                    raise ValueError(f"{self.path.name} is damaged at byte {offset}")
                yield entry
            if file.tell() != self.size:
                raise ValueError(f"{self.path.name} is damaged at its end")
