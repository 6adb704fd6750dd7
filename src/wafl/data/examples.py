"""Pack the examples of many clients into one tensor with offsets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wafl.base.fingerprint import tensors_digest
from wafl.data.mapped import Mapped, Stored, join, pick
from wafl.data.preprocessing import STATISTICS, Preprocessing

CHUNK = 4096
"""The number of examples to read at a time in a pass over all examples."""


@dataclass(frozen=True)
class Examples:
    """The stored examples of all clients, one after another: client ``i`` has rows ``offsets[i]:offsets[i+1]``."""

    raw: Stored
    y: Tensor
    offsets: Tensor
    prepare: Preprocessing = field(default_factory=Preprocessing)

    @property
    def dtype(self) -> torch.dtype:
        """The type of prepared examples: float32, or float64 if the raw ones are float64."""
        return torch.float64 if self.raw.dtype == torch.float64 else torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.raw.shape[1:])

    @property
    def x(self) -> Tensor:
        """All examples as the model sees them: a copy if they are stored as bytes or on disk."""
        return self.prepare(self.raw[:], self.dtype)

    def rows(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Return prepared examples by row, ``[*index.shape, *shape]``."""
        picked = self.raw.index_select(0, index.flatten()).view(*index.shape, *self.shape)
        return self.prepare(picked, dtype)

    def expect(self, begins: Tensor, sizes: Tensor) -> None:
        """Announce rows that will be read, ``sizes[i]`` from ``begins[i]`` on, so that the disk can start."""
        if isinstance(self.raw, Mapped):
            self.raw.expect(begins, sizes)

    @property
    def num_examples(self) -> Tensor:
        """The number of examples of each client."""
        return self.offsets.diff()

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.offsets) - 1

    def span(self) -> tuple[float, float]:
        """Return the lowest and the highest value of prepared examples."""
        ends = [self.prepare(chunk, self.dtype).aminmax() for chunk in self.raw.split(CHUNK)]
        return min(float(low) for low, _ in ends), max(float(high) for _, high in ends)

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's examples as the model sees them, and their labels."""
        rows = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        return self.prepare(self.raw[rows], self.dtype), self.y[rows]

    def to(self, device: torch.device) -> Self:
        """Return the examples on a device."""
        y, offsets = self.y.to(device), self.offsets.to(device)
        return replace(self, raw=self.raw.to(device), y=y, offsets=offsets, prepare=self.prepare.to(device))

    def of_clients(self, chosen: Sequence[int]) -> Self:
        """Return the examples of only these clients."""
        index = torch.tensor(chosen, dtype=torch.int64)
        sizes = self.num_examples[index]
        rows = _ranges(self.offsets[index], sizes)
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return replace(self, raw=pick(self.raw, rows), y=self.y[rows], offsets=offsets)

    def picked(self, rows: Sequence[Tensor]) -> Self:
        """Return only these rows, client by client."""
        every, offsets = torch.cat(list(rows)), torch.tensor([0, *map(len, rows)]).cumsum(0)
        return replace(self, raw=pick(self.raw, every), y=self.y[every], offsets=offsets)

    def digest(self, *, statistics: bool = False) -> str:
        """Return the digest of all examples as stored, their labels and their owners.

        ``statistics``: include the shift and scale of standardized data, which follow from all clients' examples.
        """
        prepare = self.prepare
        numbers = [] if prepare.name in STATISTICS and not statistics else [prepare.shift, prepare.scale]
        about = [str(self.raw.dtype), list(self.shape), str(self.y.dtype), list(self.y.shape), prepare.name]
        about += [None if number is None else number.tolist() for number in numbers]
        return tensors_digest(chain((self.offsets, self.y), self.raw.split(CHUNK)), about)

    def joined(self, other: Self) -> Self:
        """Return each client's examples, followed by its examples in ``other``."""
        sizes = torch.stack([self.num_examples, other.num_examples], dim=1).flatten()
        begins = torch.stack([self.offsets[:-1], len(self.y) + other.offsets[:-1]], dim=1).flatten()
        rows = _ranges(begins, sizes)
        raw, y = pick(join([self.raw, other.raw]), rows), torch.cat([self.y, other.y])[rows]
        return replace(self, raw=raw, y=y, offsets=self.offsets + other.offsets)


def _ranges(begins: Tensor, sizes: Tensor) -> Tensor:
    """Return ``begin .. begin + size - 1`` for each begin, one after another."""
    ends = sizes.cumsum(0)
    return torch.arange(int(ends[-1])) + torch.repeat_interleave(begins - (ends - sizes), sizes)


Array = NDArray[Any]


class Packer:
    """A builder of one array of examples without a second copy; mapped examples stay on disk, if the first are."""

    def __init__(self) -> None:
        self._x, self._y = _Rows(), _Rows()
        self._mapped: list[Mapped] = []
        self._sizes: list[Array] = []

    def add(self, x: Stored, y: Tensor, sizes: Tensor) -> None:
        """Append a copy of the examples of consecutive clients with these sizes."""
        on_disk = bool(self._mapped) if self._sizes else isinstance(x, Mapped)
        if on_disk:
            self._mapped.append(x if isinstance(x, Mapped) else Mapped.of(x.numpy()))
        else:
            self._x.add(x[:].numpy())
        self._y.add(y.numpy())
        self._sizes.append(sizes.numpy())

    def finish(self) -> Examples:
        """Return all examples that were added; the packer cannot be used afterwards."""
        x = Mapped.joined(self._mapped) if self._mapped else self._x.finish()
        ends = np.concatenate([np.zeros(1, np.int64), *self._sizes]).cumsum()
        return Examples(x, self._y.finish(), torch.from_numpy(ends))


class _Rows:
    """Rows of one type and shape in one buffer, which the system extends without copying it."""

    def __init__(self) -> None:
        self._buffer, self._shape, self._type = bytearray(), (0,), np.dtype(float)

    def add(self, rows: Array) -> None:
        self._buffer.extend(np.ascontiguousarray(rows))
        self._shape, self._type = (self._shape[0] + len(rows), *rows.shape[1:]), rows.dtype

    def finish(self) -> Tensor:
        return torch.from_numpy(np.ndarray(self._shape, self._type, self._buffer))
