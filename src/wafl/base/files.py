"""Files that are either complete or absent, that show when they have been damaged, and that no link leads elsewhere."""

import json
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from wafl.base.json_types import parsed_table

SEAL = "checksum"
LARGEST = 2**28
"""The most bytes of a file of ours that holds JSON."""
TEMPORARY = ".tmp"
"""How the names of files end that a crash may leave behind."""


def check_place(path: Path, *, page: bool = False) -> None:
    """Raise ValueError if no file can be written here: it is a folder, its folder is missing, or a page has its name.

    ``page``: next to the file goes a page in words, ``NAME.md``.
    """
    if page and path.suffix == ".md":
        raise ValueError(f"{path} is the name of the page in words: name the certificate {path.stem}.json")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'name.json'}")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder: make it first, or write {path.name} into another one")


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write all of it or nothing: under a name that nobody could have put a link at, synced, then renamed."""
    temporary = _temporary(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def read_limited(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a plain file; a ValueError if it has more than ``most``, or is a pipe, which may never end."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a plain file")
    if path.stat().st_size > most:
        raise ValueError(f"it has more than {most >> 20} MiB")
    return path.read_bytes()


def read_tensors(path: Path) -> bytes:
    """The bytes of a file of tensors, which takes its size again when they are read, so at most half of the memory."""
    return read_limited(path, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


@contextmanager
def whole_folder(path: Path) -> Generator[Path, None, None]:
    """A new folder, all of it or nothing: filled under another name, synced, renamed; or FileExistsError."""
    temporary = _temporary(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        sync(temporary)
        try:
            temporary.rename(path)
        except OSError as error:
            raise FileExistsError(f"{path} exists already") if path.exists() else error from None
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(path.parent)


def is_temporary(path: Path) -> bool:
    """Whether a crash has left it behind, or somebody is still writing it."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")


def not_plain(folder: Path) -> Iterator[Path]:
    """Yield the links, pipes, sockets and devices below a folder, which itself may be reached through a link.

    A hard link is a file that has another name, here or elsewhere: what is appended to one appears in the other.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # somebody is at work here, and has removed or renamed it
                about = path.lstat()
                if not stat.S_ISDIR(about.st_mode) and not (stat.S_ISREG(about.st_mode) and about.st_nlink == 1):
                    yield path


@contextmanager
def lock(path: Path, patience: float, busy: Exception) -> Generator[None, None, None]:
    """A block in which no other process has the lock file; if one has it for so many seconds, ``busy`` is raised.

    The lock ends with the process, however it ends.
    """
    from filelock import FileLock, Timeout

    try:
        held = FileLock(path).acquire(timeout=patience)
    except Timeout:
        raise busy from None
    with held:
        yield


def is_locked(path: Path) -> bool:
    """Return True if a process holds the lock file; this takes no exclusive lock itself."""
    import fcntl  # Unix only

    if not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def remove_temporary(folder: Path) -> None:
    """Remove what a crash left half written in a folder."""
    for path in folder.glob(f".*{TEMPORARY}"):
        remove(path)


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, or a file, which may be missing."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Make a rename in the folder survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sealed(content: Mapping[str, Any], *, indent: int | None = 1) -> bytes:
    """JSON with its own checksum; writing is several times faster without an indent."""
    return json.dumps({**content, SEAL: _checksum(content)}, indent=indent).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """What :func:`sealed` wrote; raises ValueError if a byte of it has changed.

    >>> unsealed(sealed({"loss": 0.5}))
    {'loss': 0.5}
    """
    table = parsed_table(data)
    if table.pop(SEAL, None) != _checksum(table):
        raise ValueError("its checksum differs")
    return table


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
