"""Represent rows of memory-mapped arrays, which stay on disk until they are read."""

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 2**22
"""The number of bytes that :meth:`Mapped.split` reads at a time."""
RESIDENT = 2**26
"""The number of bytes to read before the system may remove them from this process."""
AROUND = 2**16
"""The number of bytes that a system maps around a byte that is read."""


@dataclass(frozen=True, eq=False)
class Mapped:
    """A substitute for one tensor: row ``i`` is row ``rows[i]`` of the arrays laid end to end, read when needed."""

    arrays: tuple[NDArray[Any], ...]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, array: NDArray[Any]) -> Self:
        """Return all rows of one array."""
        return cls((array,), np.arange(len(array)))

    @classmethod
    def joined(cls, pieces: Sequence[Self]) -> Self:
        """Return the rows of all pieces, one after another."""
        before = np.cumsum([0, *(sum(map(len, piece.arrays)) for piece in pieces)])
        rows = [piece.rows + start for piece, start in zip(pieces, before, strict=False)]
        return cls(tuple(array for piece in pieces for array in piece.arrays), np.concatenate(rows))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return len(self.rows), *self.arrays[0].shape[1:]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.arrays[0].ndim

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensor."""
        return torch.from_numpy(np.empty(0, self._type)).dtype

    def is_floating_point(self) -> bool:
        """Return whether the type is floating-point."""
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, rows: Tensor) -> Self:
        """Return some of the rows, still on disk."""
        return replace(self, rows=self.rows[rows.numpy()])

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        wanted = self.rows[rows if isinstance(rows, slice) else rows.cpu().numpy()]
        values = np.empty((len(wanted), *self.shape[1:]), self._type)
        for number, here, rows in self._at_home(wanted):
            values[here] = self.arrays[number][rows]
            self._count_read(values.nbytes if isinstance(rows, slice) else len(rows) * max(AROUND, self._row_bytes))
        return torch.from_numpy(values)

    def expect(self, begins: Tensor, sizes: Tensor) -> None:
        """Ask the system to read these rows ahead, ``sizes[i]`` from ``begins[i]`` on."""
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
            for number, _, rows in self._at_home(self.rows[begin : begin + size]):
                last = rows.stop - 1 if isinstance(rows, slice) else rows.max()
                _advise(self.arrays[number], int(rows.start if isinstance(rows, slice) else rows.min()), int(last))

    def _at_home(self, wanted: NDArray[np.int64]) -> Iterator[tuple[int, Any, Any]]:
        """Yield, for each array with wanted rows, its index, the wanted indices, and their rows in it."""
        if len(wanted) == 0:
            return
        first, last = (int(np.searchsorted(self._starts, row, side="right")) - 1 for row in wanted[[0, -1]])
        if first == last and int(wanted[-1] - wanted[0]) == len(wanted) - 1 and bool((np.diff(wanted) == 1).all()):
            begin = int(wanted[0] - self._starts[first])
            yield first, slice(None), slice(begin, begin + len(wanted))
            return
        home = np.searchsorted(self._starts, wanted, side="right") - 1
        for number in np.unique(home):
            here = home == number
            yield int(number), here, wanted[here] - self._starts[number]

    @property
    def _row_bytes(self) -> int:
        return self._type.itemsize * math.prod(self.shape[1:])

    def _count_read(self, size: int) -> None:
        """Release the memory of the bytes that were read, once there are many, to keep the process small."""
        self._read[0] += size
        if self._read[0] > RESIDENT:
            self._read[0] = 0
            for array in self.arrays:
                _forget(array)

    @cached_property
    def _read(self) -> list[int]:
        """The number of bytes read since the last release."""
        return [0]

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """Return these rows as a tensor."""
        assert dim == 0
        return self[index].to(index.device)

    def split(self, size: int) -> Iterator[Tensor]:
        """Return all rows, a few at a time: at most ``size``, and no more than fit into ``CHUNK`` bytes."""
        step = max(1, min(size, CHUNK // max(1, self._row_bytes)))
        return (self[begin : begin + step] for begin in range(0, len(self), step))

    def to(self, device: torch.device) -> Self | Tensor:
        """Return itself for the CPU; on another device, all rows as a tensor."""
        return self if device.type == "cpu" else self[:].to(device)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """The index of each array's first row."""
        return np.cumsum([0, *map(len, self.arrays[:-1])])

    @property
    def _type(self) -> np.dtype[Any]:
        """The arrays' type in this machine's byte order."""
        return self.arrays[0].dtype.newbyteorder("=")


def _advise(array: NDArray[Any], first: int, last: int) -> None:
    """Ask the system to read rows ahead, if it can."""
    source, step = getattr(array, "_mmap", None), array.strides[0]
    if source is None or not hasattr(mmap, "MADV_WILLNEED") or step <= 0:
        return
    origin = np.frombuffer(source, np.uint8).__array_interface__["data"][0]
    begin = array.__array_interface__["data"][0] + first * step - origin
    begin -= begin % mmap.PAGESIZE
    source.madvise(mmap.MADV_WILLNEED, begin, min((last - first + 2) * step, len(source) - begin))


def _forget(array: NDArray[Any]) -> None:
    """Release pages that are on disk anyway; changes to a private copy stay."""
    source = getattr(array, "_mmap", None)
    if source is not None and hasattr(mmap, "MADV_DONTNEED") and getattr(array, "mode", None) in ("r", "r+", "w+"):
        source.madvise(mmap.MADV_DONTNEED)


Stored = Tensor | Mapped
"""Examples as they are stored."""


def join(pieces: Sequence[Stored]) -> Stored:
    """Return all rows of the pieces, one after another; if a piece is on disk, they are not copied."""
    if any(isinstance(piece, Mapped) for piece in pieces):
        return Mapped.joined([piece if isinstance(piece, Mapped) else Mapped.of(piece.numpy()) for piece in pieces])
    return torch.cat([piece for piece in pieces if isinstance(piece, Tensor)])


def pick(stored: Stored, rows: Tensor) -> Stored:
    """Return some of the rows; a copy, unless they are on disk."""
    if isinstance(stored, Mapped):
        return stored.pick(rows)
    if stored.device.type != "cpu":
        return stored.index_select(0, rows)
    # numpy asks the system for large pages, and gigabytes of small ones take longer to get than to fill
    room = np.empty((len(rows), *stored.shape[1:]), stored[:0].numpy().dtype)
    return torch.index_select(stored, 0, rows, out=torch.from_numpy(room))
