"""Puts the examples of one client after another into one array."""

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
    """Appends examples to one array and never holds them twice; mapped ones stay on disk, if the first are."""

    def __init__(self) -> None:
        self._x, self._y = _Rows(), _Rows()
        self._mapped: list[Mapped] = []
        self._sizes: list[Array] = []

    def add(self, x: Stored, y: Tensor, sizes: Tensor) -> None:
        """Append the examples of consecutive clients, which have that many each, as a copy."""
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
        self._piece = np.empty(0)
        self._used = 0

    def add(self, rows: Array) -> None:
        fits = self._piece.dtype == rows.dtype and self._piece.shape[1:] == rows.shape[1:]
        if not fits or self._used + len(rows) > len(self._piece):
            self._full += [self._piece[: self._used]] if self._used else []
            most = PIECE // max(1, rows.itemsize * prod(rows.shape[1:]))
            room = max(len(rows), min(most, sum(map(len, self._full))))
            self._piece, self._used = np.empty((room, *rows.shape[1:]), rows.dtype), 0
        self._piece[self._used : self._used + len(rows)] = rows
        self._used += len(rows)

    def finish(self) -> Tensor:
        pieces = [*self._full, self._piece[: self._used]]
        self._full, self._piece = [], np.empty(0)  # nothing else keeps a piece that has been copied
        whole, end = np.empty((sum(map(len, pieces)), *pieces[0].shape[1:]), pieces[0].dtype), 0
        pieces.reverse()
        while pieces:
            piece = pieces.pop()
            whole[end : end + len(piece)] = piece
            end += len(piece)
        return torch.from_numpy(whole)
