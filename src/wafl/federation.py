"""Clients' examples, packed in one tensor with offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wafl.random import Key, Purpose, permutation


@dataclass(frozen=True)
class Examples:
    """The examples of all clients, one after another: client ``i`` has rows ``offsets[i]:offsets[i+1]``."""

    x: Tensor
    y: Tensor
    offsets: Tensor

    @property
    def num_examples(self) -> Tensor:
        return self.offsets.diff()

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        rows = slice(int(self.offsets[client]), int(self.offsets[client + 1]))
        return self.x[rows], self.y[rows]

    def to(self, device: torch.device) -> Examples:
        return Examples(self.x.to(device), self.y.to(device), self.offsets.to(device))


@dataclass(frozen=True)
class Federation:
    """Many clients, each with training and test examples of its own.

    ``unit`` says what the numbers in ``x`` mean and ``bounds`` between which values they lie, because
    every gamma, radius and epsilon is in those units.
    """

    train: Examples
    test: Examples
    names: tuple[str, ...]
    unit: str = "input units"
    bounds: tuple[float, float] | None = None
    num_classes: int | None = None

    @classmethod
    def from_arrays(
        cls,
        arrays: Iterable[tuple[Any, Any]],
        *,
        test_fraction: float = 0.25,
        names: Sequence[str] | None = None,
        unit: str = "input units",
        bounds: tuple[float, float] | None = None,
        num_classes: int | None = None,
        seed: int = 0,
    ) -> Federation:
        """Pack one ``(x, y)`` pair a client; hold ``test_fraction`` of each client's examples out for testing.

        Integer labels make a classification task, floating-point targets a regression. Each client keeps at
        least one training example.

        >>> import numpy as np, wafl
        >>> pairs = [(np.random.rand(8, 4), np.arange(8) % 2) for _ in range(3)]
        >>> wafl.Federation.from_arrays(pairs)
        Federation(3 clients, 18 training and 6 test examples of shape (4,), 2 classes)
        """
        if not 0.0 <= test_fraction < 1.0:
            raise ValueError(f"test_fraction={test_fraction} must lie in [0, 1): 0.25 holds a quarter out")
        pairs = [_read_pair(client, pair) for client, pair in enumerate(arrays)]
        if not pairs:
            raise ValueError("there are no clients: pass at least one (x, y) pair")
        names = tuple(names) if names is not None else tuple(f"client {i}" for i in range(len(pairs)))
        if len(names) != len(pairs) or len(set(names)) != len(names):
            raise ValueError(
                f"{len(names)} client names for {len(pairs)} clients: give each client one name of its own"
            )
        _check_alike(pairs)
        num_classes = _check_labels([y for _, y in pairs], num_classes)
        _check_bounds([x for x, _ in pairs], bounds)
        train, test = _split(pairs, test_fraction, seed)
        return cls(train, test, names, unit, bounds, num_classes)

    @property
    def num_clients(self) -> int:
        return self.train.num_clients

    @property
    def num_examples(self) -> list[int]:
        """How many training and test examples each client has."""
        return (self.train.num_examples + self.test.num_examples).tolist()

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])

    def __repr__(self) -> str:
        task = "regression" if self.num_classes is None else f"{self.num_classes} classes"
        return (
            f"Federation({self.num_clients} clients, {len(self.train.x)} training and {len(self.test.x)} test "
            f"examples of shape {self.input_shape}, {task})"
        )


def _read_pair(client: int, pair: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    try:
        x, y = (value if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value)) for value in pair)
    except (TypeError, ValueError) as error:
        raise ValueError(f"client {client} is not a pair of arrays (x, y): {error}") from error
    if not x.is_floating_point():
        x = x.to(torch.float32)
    if y.is_floating_point():
        y = y.to(x.dtype)
    elif y.ndim != 1:
        raise ValueError(f"client {client} has labels of shape {tuple(y.shape)}: integer labels are one-dimensional")
    else:
        y = y.to(torch.int64)
    if len(x) != len(y):
        raise ValueError(f"client {client} has {len(x)} examples but {len(y)} labels")
    if len(x) == 0:
        raise ValueError(f"client {client} is empty: leave it out or give it at least one example")
    if x.ndim < 2:
        raise ValueError(
            f"client {client} has x of shape {tuple(x.shape)}: examples need at least one feature dimension"
        )
    for name, values in (("x", x), ("y", y)):
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise ValueError(f"client {client} has NaN or infinity in {name}: clean or drop those examples")
    return x, y


def _check_alike(pairs: list[tuple[Tensor, Tensor]]) -> None:
    x0, y0 = pairs[0]
    for client, (x, y) in enumerate(pairs):
        for name, value, first in (("examples", x, x0), ("labels", y, y0)):
            if value.shape[1:] != first.shape[1:] or value.dtype != first.dtype:
                raise ValueError(
                    f"client {client} has {name} of shape {tuple(value.shape[1:])} and type {value.dtype}, "
                    f"client 0 of shape {tuple(first.shape[1:])} and type {first.dtype}: all clients must agree"
                )


def _check_labels(labels: list[Tensor], num_classes: int | None) -> int | None:
    if labels[0].is_floating_point():
        if num_classes is not None:
            raise ValueError("num_classes is for integer labels, but these are floating-point targets")
        return None
    found = max(int(y.max()) for y in labels) + 1
    num_classes = num_classes or found
    for client, y in enumerate(labels):
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"client {client} has labels from {low} to {high}: they must lie in 0 .. {num_classes - 1}"
            )
    return num_classes


def _check_bounds(xs: list[Tensor], bounds: tuple[float, float] | None) -> None:
    if bounds is None:
        return
    low, high = bounds
    if not low < high:
        raise ValueError(f"bounds={bounds} must be (low, high) with low < high")
    for client, x in enumerate(xs):
        if float(x.min()) < low or float(x.max()) > high:
            raise ValueError(
                f"client {client} has values from {float(x.min()):g} to {float(x.max()):g}, outside bounds={bounds}"
            )


def _split(pairs: list[tuple[Tensor, Tensor]], test_fraction: float, seed: int) -> tuple[Examples, Examples]:
    """Copy every row once, straight to its place in the training or the test pack."""
    sizes = torch.tensor([len(x) for x, _ in pairs])
    num_test = torch.minimum((sizes * test_fraction).round().to(torch.int64), sizes - 1)
    packs = [_allocate(pairs[0], count) for count in (sizes - num_test, num_test)]
    # Blocks of clients keep the table of draws small when there are very many.
    for block in torch.arange(len(pairs)).split(1024):
        key = Key(*(torch.full_like(block, value) for value in (seed, 0)), client=block, step=torch.zeros_like(block))
        orders = permutation(key, Purpose.SPLIT, sizes[block], int(sizes[block].max()))
        for client, order in zip(block.tolist(), orders, strict=True):
            x, y = pairs[client]
            order, held_out = order[: len(x)], int(num_test[client])
            for pack, rows in zip(packs, (order[held_out:], order[:held_out]), strict=True):
                place = slice(int(pack.offsets[client]), int(pack.offsets[client + 1]))
                rows = rows.sort().values
                pack.x[place], pack.y[place] = x[rows], y[rows]
    return packs[0], packs[1]


def _allocate(like: tuple[Tensor, Tensor], sizes: Tensor) -> Examples:
    x, y = (values.new_empty(int(sizes.sum()), *values.shape[1:]) for values in like)
    return Examples(x, y, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
