"""Write files completely or not at all, detect damage, and follow no links to other places."""

import json
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wafl.base.json_types import parsed_table

if TYPE_CHECKING:
    from torch import Tensor

SEAL = "checksum"
LARGEST = 2**28
"""The maximum size in bytes of a JSON file of this package."""
TEMPORARY = ".tmp"
"""The suffix of temporary files, which a crash may leave behind."""


def check_place(path: Path, *, page: bool = False) -> None:
    """Raise ValueError if no file can be written here: a folder, a missing parent, or a page with its name.

    With ``page``, a readable page ``NAME.md`` is written next to the file.
    """
    if page and path.suffix == ".md":
        raise ValueError(f"{path} is the name of the page in words: name the certificate {path.stem}.json")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file, such as {path / 'name.json'}")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent} is not a folder: make it first, or write {path.name} into another one")


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file completely or not at all.

    The content goes to an unpredictable temporary name, where no link can wait, is synced, and is then renamed.
    """
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


def tensors_to_bytes(tensors: Mapping[str, "Tensor"], about: dict[str, str] | None = None) -> bytes:
    """Return the bytes of a safetensors file."""
    from safetensors.torch import save

    # Copies, because a model may have two names for one tensor, which the format refuses.
    return save({name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}, about)


def read_limited(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a plain file; raise ValueError if it has more than ``most`` bytes or is not a plain file.

    A pipe might never end.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not a plain file")
    if path.stat().st_size > most:
        raise ValueError(f"it has more than {most >> 20} MiB")
    return path.read_bytes()


def read_tensors(path: Path) -> bytes:
    """Return the bytes of a file of tensors, limited to half of the memory.

    Reading the tensors takes the size of the file a second time.
    """
    return read_limited(path, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


@contextmanager
def whole_folder(path: Path) -> Generator[Path, None, None]:
    """Create a new folder completely or not at all; raise FileExistsError if it exists.

    The block fills it under a temporary name; afterwards it is synced and renamed.
    """
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
    """Return whether a path is temporary: left behind by a crash, or still being written."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")


def not_plain(folder: Path) -> Iterator[Path]:
    """Yield the links, pipes, sockets and devices below a folder, which itself may be reached through a link.

    A file with several hard links counts: whatever is appended to one name appears under the other.
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
    """Hold a lock file during the block; raise ``busy`` if another process holds it for ``patience`` seconds.

    The lock ends with the process, even after a crash.
    """
    from filelock import FileLock, Timeout

    try:
        held = FileLock(path).acquire(timeout=patience)
    except Timeout:
        raise busy from None
    with held:
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock file; this takes no exclusive lock itself."""
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
    """Remove the incomplete files of a crash from a folder."""
    for path in folder.glob(f".*{TEMPORARY}"):
        remove(path)


def remove(path: Path) -> None:
    """Remove a folder with its content, or a file, which may be missing."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Make a rename in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sealed(content: Mapping[str, Any], *, indent: int | None = 1) -> bytes:
    """Return JSON with a checksum of its content; without an indent, writing is several times faster."""
    return json.dumps({**content, SEAL: _checksum(content)}, indent=indent).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the content of :func:`sealed` JSON; raise ValueError if a byte has changed.

    >>> unsealed(sealed({"loss": 0.5}))
    {'loss': 0.5}
    """
    table = parsed_table(data)
    if table.pop(SEAL, None) != _checksum(table):
        raise ValueError("its checksum differs")
    return table


def _checksum(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
