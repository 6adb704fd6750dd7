"""Unpack untrusted files, with a limited size and a check of headers before memory is allocated."""

import bz2
import gzip
import io
import lzma
import math
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from wafl.base.checks import in_bytes

LIMIT = 2 * 2**30
"""The maximum unpacked size of a data set's file; SVHN's training images, the largest, take a tenth of it."""

_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}


def unpacked(path: Path, limit: int | None = None) -> IO[bytes]:
    """Open a file, decompressed if it begins like gzip, bzip2 or xz; reading over ``limit`` bytes is an error."""
    check_plain(path)
    with path.open("rb") as file:
        begin = file.read(6)
    opener = next((opener for magic, opener in _OPENERS.items() if begin.startswith(magic)), open)
    return io.BufferedReader(_Bounded(opener(path, "rb"), LIMIT if limit is None else limit))


class _Bounded(io.RawIOBase):
    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit, self._read = file, limit, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.read(len(buffer))
        self._read += len(data)
        check_size(self._read, self._limit)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def check_size(size: int, limit: int | None = None) -> None:
    """Raise ValueError if a file's size exceeds the limit."""
    limit = LIMIT if limit is None else limit
    if size > limit:
        raise ValueError(f"it unpacks to more than {in_bytes(limit)}, which is the limit")


def read_npz(path: Path, keys: Sequence[str], limit: int | None = None) -> dict[str, NDArray[Any]]:
    """Return the requested arrays of an ``.npz`` file, each read in full, if headers match the file's content."""
    check_plain(path)
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is cut off, or not an npz file")
        try:
            with zipfile.ZipFile(file) as archive:
                members = {info.filename: info for info in archive.infolist()}
                chosen = {key: members[f"{key}.npy"] for key in keys if f"{key}.npy" in members}
                check_size(sum(info.file_size for info in chosen.values()), limit)
                return {key: _read_member(key, archive, info) for key, info in chosen.items()}
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"it is damaged: {error}") from error


def _read_member(key: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as member:
        _check_header(key, member, info.file_size)
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def check_plain(path: Path) -> None:
    """Raise ValueError for a pipe or a device, which may never end."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a plain file")


def check_npy(path: Path) -> None:
    """Raise ValueError unless an ``.npy`` file contains what its header declares; a zip archive has no array itself."""
    check_plain(path)
    with path.open("rb") as file:
        _check_header("it", file, path.stat().st_size)


def _check_header(key: str, member: IO[bytes], size: int) -> None:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(member)
    promised, held = math.prod(shape) * dtype.itemsize, size - member.tell()
    if not dtype.hasobject and promised != held:  # numpy refuses objects
        raise ValueError(f"{key} holds {in_bytes(held)}, but its header promises {in_bytes(promised)}")
