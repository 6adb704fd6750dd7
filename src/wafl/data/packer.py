"""Puts the examples of one client after another into one array."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wafl.data.examples import Examples
from wafl.data.mapped import Mapped, Stored

PIECE = 2**26
"""At most so many bytes are asked for in advance; they go back to the system as soon as they are freed."""

Array = NDArray[Any]


class Packer:
    """Appends examples to one array, however many come, and never holds them twice.

    Memory-mapped examples stay where they are, if those of the first client are.
    """

    def __init__(self) -> None:
        self._x, self._y = _Rows(), _Rows()
        self._mapped: list[Mapped] = []
        self._sizes: list[Array] = []

    def add(self, x: Stored, y: Tensor, sizes: Tensor) -> None:
        """Append a copy of the examples of consecutive clients, which have that many each."""
        on_disk = bool(self._mapped) if self._sizes else isinstance(x, Mapped)
        if on_disk:
            self._mapped.append(x if isinstance(x, Mapped) else Mapped.of(x.numpy()))
        else:
            self._x.add(x[:].numpy())
        self._y.add(y.numpy())
        self._sizes.append(sizes.numpy())

    def finish(self) -> Examples:
        """All examples that were added; the packer is empty then."""
        x = Mapped.joined(self._mapped) if self._mapped else self._x.finish()
        ends = np.concatenate([np.zeros(1, np.int64), *self._sizes]).cumsum()
        return Examples(x, self._y.finish(), torch.from_numpy(ends))


class _Rows:
    """Rows in large pieces, which at the end are copied and freed one after another."""

    def __init__(self) -> None:
        self._full: list[Array] = []
        self._piece: Array | None = None
        self._used = 0

    def add(self, rows: Array) -> None:
        if self._piece is None or self._used + len(rows) > len(self._piece):
            self._close()
            most = PIECE // max(1, rows.itemsize * prod(rows.shape[1:]))
            count = max(len(rows), min(most, sum(map(len, self._full))))
            self._piece = np.empty((count, *rows.shape[1:]), rows.dtype)
        self._piece[self._used : self._used + len(rows)] = rows
        self._used += len(rows)

    def finish(self) -> Tensor:
        self._close()
        if not self._full:
            return torch.empty(0)
        like = self._full[0]
        whole, end = np.empty((sum(map(len, self._full)), *like.shape[1:]), like.dtype), 0
        self._full.reverse()
        while self._full:
            piece = self._full.pop()
            whole[end : end + len(piece)] = piece
            end += len(piece)
        return torch.from_numpy(whole)

    def _close(self) -> None:
        if self._piece is not None:
            self._full.append(self._piece[: self._used])
        self._piece, self._used = None, 0


class Scratch:
    """Memory that is written again and again: new memory takes the system longer to hand out than to fill."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def joined(self, arrays: Sequence[Array]) -> Array:
        """The arrays, all of one type, one after another; until the next call."""
        first = arrays[0]
        shape = sum(map(len, arrays)), *first.shape[1:]
        count = first.itemsize * prod(shape)
        if count > len(self._bytes):
            self._bytes = np.empty(count + count // 4, np.uint8)
        return np.concatenate(arrays, out=self._bytes[:count].view(first.dtype).reshape(shape))
