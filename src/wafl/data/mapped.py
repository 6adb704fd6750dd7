"""Rows of memory-mapped arrays, which stay on disk until they are asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHUNK = 2**22
"""How many bytes :meth:`Mapped.split` reads at a time."""


@dataclass(frozen=True, eq=False)
class Mapped:
    """Stands in for one tensor of all examples: row ``i`` is row ``rows[i]`` of the arrays laid end to end.

    Nothing is read when it is made; every tensor it gives holds just the rows that were asked for.
    """

    arrays: tuple[NDArray[Any], ...]
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, array: NDArray[Any]) -> Mapped:
        """All rows of one array."""
        return cls((array,), np.arange(len(array)))

    @classmethod
    def joined(cls, parts: Sequence[Mapped]) -> Mapped:
        """The rows of all parts, one after another."""
        before = np.cumsum([0, *(sum(map(len, part.arrays)) for part in parts)])
        rows = [part.rows + start for part, start in zip(parts, before, strict=False)]
        return cls(tuple(array for part in parts for array in part.arrays), np.concatenate(rows))

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), *self.arrays[0].shape[1:]

    @property
    def ndim(self) -> int:
        return self.arrays[0].ndim

    @property
    def dtype(self) -> torch.dtype:
        return torch.from_numpy(np.empty(0, self._type)).dtype

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, rows: Tensor) -> Mapped:
        """Some of the rows, still on disk."""
        return replace(self, rows=self.rows[rows.numpy()])

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        wanted = self.rows[rows if isinstance(rows, slice) else rows.cpu().numpy()]
        found = np.empty((len(wanted), *self.shape[1:]), self._type)
        home = np.searchsorted(self._starts, wanted, side="right") - 1
        for place in np.unique(home):
            here = home == place
            found[here] = self.arrays[place][wanted[here] - self._starts[place]]
        return torch.from_numpy(found)

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        assert dim == 0
        return self[index].to(index.device)

    def split(self, size: int) -> Iterator[Tensor]:
        """All rows, a few at a time: at most ``size``, and no more than fit into ``CHUNK`` bytes."""
        step = max(1, min(size, CHUNK // max(1, self._type.itemsize * math.prod(self.shape[1:]))))
        return (self[begin : begin + step] for begin in range(0, len(self), step))

    def to(self, device: torch.device) -> Mapped | Tensor:
        """Itself on the CPU; another device must hold all rows."""
        return self if device.type == "cpu" else self[:].to(device)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where each array begins."""
        return np.cumsum([0, *map(len, self.arrays[:-1])])

    @property
    def _type(self) -> np.dtype[Any]:
        """The arrays' type in this machine's byte order."""
        return self.arrays[0].dtype.newbyteorder("=")


Stored = Tensor | Mapped
"""How examples are stored."""


def join(parts: Sequence[Stored]) -> Stored:
    """All rows of the parts, one after another; on disk if the first are."""
    if any(isinstance(part, Mapped) for part in parts):
        return Mapped.joined([part if isinstance(part, Mapped) else Mapped.of(part.numpy()) for part in parts])
    return torch.cat([part for part in parts if isinstance(part, Tensor)])


def pick(stored: Stored, rows: Tensor) -> Stored:
    """Some of the rows; a copy, unless they are on disk."""
    return stored.pick(rows) if isinstance(stored, Mapped) else stored[rows]
