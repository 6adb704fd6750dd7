"""Your own arrays, one pair per client, checked and packed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wafl.core.checks import check_bounds, check_seed
from wafl.core.random import Key, Purpose, permutation
from wafl.data.examples import Examples


def pack_arrays(
    arrays: Iterable[tuple[Any, Any]],
    *,
    test_fraction: float,
    bounds: tuple[float, float] | None,
    num_classes: int | None,
    seed: int,
) -> tuple[Examples, Examples, int | None]:
    """Training and test examples of all clients, and the number of classes; see ``Federation.from_arrays``."""
    if not 0.0 <= test_fraction < 1.0:
        raise ValueError(f"test_fraction={test_fraction} must lie in [0, 1): 0.25 holds a quarter out")
    check_seed(seed)
    packers = _Packer(), _Packer()
    shapes = _Agreement(num_classes, bounds)
    for block in _blocks(arrays, 256):
        pairs = [_read_pair(client, pair) for client, pair in block]
        for (client, _), (x, y) in zip(block, pairs, strict=True):
            shapes.check(client, x, y)
        sizes = torch.tensor([len(x) for x, _ in pairs])
        for (x, y), rows in zip(pairs, split_rows(block[0][0], sizes, test_fraction, seed), strict=True):
            for packer, part in zip(packers, rows, strict=True):
                packer.add(x[part], y[part])
    train, test = (packer.finish() for packer in packers)
    if train.num_clients == 0:
        raise ValueError("there are no clients: pass at least one (x, y) pair")
    return train, test, shapes.num_classes()


def _read_pair(client: int, pair: tuple[Any, Any]) -> tuple[Tensor, Tensor]:
    try:
        x, y = (_read_array(values) for values in pair)
    except (TypeError, ValueError) as error:
        raise ValueError(f"client {client} is not a pair of arrays (x, y): {error}") from error
    if x.ndim < 2 or y.ndim < 1:
        raise ValueError(
            f"client {client} has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}: "
            "x must have at least one feature dimension, and y one label per example"
        )
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
    for name, values in (("x", x), ("y", y)):
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            raise ValueError(f"client {client} has NaN or infinity in {name}: clean or drop those examples")
    return x, y


def _read_array(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        array = np.asarray(values)
        writable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
        tensor = torch.from_numpy(array if writable else array.copy())
    # Half precision is for storage, not for ascent.
    return tensor.to(torch.float32) if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


class _Agreement:
    """What all clients must have in common."""

    def __init__(self, num_classes: int | None, bounds: tuple[float, float] | None) -> None:
        self._given, self._bounds = num_classes, check_bounds(bounds)
        self._first: tuple[Tensor, Tensor] | None = None
        self._highest = -1

    def check(self, client: int, x: Tensor, y: Tensor) -> None:
        self._first = self._first or (x[:1].clone(), y[:1].clone())
        for name, value, first in zip(("examples", "labels"), (x, y), self._first, strict=True):
            if value.shape[1:] != first.shape[1:] or value.dtype != first.dtype:
                raise ValueError(
                    f"client {client} has {name} of shape {tuple(value.shape[1:])} and type {value.dtype}, "
                    f"client 0 of shape {tuple(first.shape[1:])} and type {first.dtype}: all clients must agree"
                )
        if self._bounds is not None and (float(x.min()) < self._bounds[0] or float(x.max()) > self._bounds[1]):
            raise ValueError(
                f"client {client} has values from {float(x.min()):g} to {float(x.max()):g}, "
                f"outside bounds={self._bounds}"
            )
        if y.is_floating_point():
            if self._given is not None:
                raise ValueError("num_classes is for integer labels, but these are floating-point targets")
            return
        low, high = int(y.min()), int(y.max())
        self._highest = max(self._highest, high)
        if low < 0 or (self._given is not None and high >= self._given):
            last = self._highest if self._given is None else self._given - 1
            raise ValueError(f"client {client} has labels from {low} to {high}: they must lie in 0 .. {last}")

    def num_classes(self) -> int | None:
        """None for a regression."""
        if self._first is not None and self._first[1].is_floating_point():
            return None
        return self._given if self._given is not None else self._highest + 1


class _Packer:
    """Appends rows to one array that grows in place, so that packing never holds the data twice."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray[Any, Any]] = []
        self._ends = [0]

    def add(self, x: Tensor, y: Tensor) -> None:
        end = self._ends[-1] + len(x)
        if not self._arrays:
            self._arrays = [np.empty((0, *values.shape[1:]), values.numpy().dtype) for values in (x, y)]
        for array, values in zip(self._arrays, (x, y), strict=True):
            if end > len(array):
                array.resize((end + end // 8, *array.shape[1:]), refcheck=False)
            array[self._ends[-1] : end] = values.numpy()
        self._ends.append(end)

    def finish(self) -> Examples:
        for array in self._arrays:
            array.resize((self._ends[-1], *array.shape[1:]), refcheck=False)
        x, y = (torch.from_numpy(array) for array in self._arrays) if self._arrays else (torch.empty(0),) * 2
        return Examples(x, y, torch.tensor(self._ends))


def _blocks(arrays: Iterable[tuple[Any, Any]], size: int) -> Iterator[list[tuple[int, tuple[Any, Any]]]]:
    numbered = enumerate(arrays)
    while block := list(itertools.islice(numbered, size)):
        yield block


def split_rows(
    first: int, sizes: Tensor, test_fraction: float, seed: int, purpose: Purpose = Purpose.SPLIT
) -> Iterator[tuple[Tensor, Tensor]]:
    """Training and test rows of consecutive clients, a random split of each client's own rows, in ascending order."""
    num_test = torch.minimum((sizes * test_fraction).round().to(torch.int64), sizes - 1)
    clients = torch.arange(first, first + len(sizes))
    key = Key(torch.full_like(clients, seed), torch.zeros_like(clients), clients, torch.zeros_like(clients))
    orders = permutation(key, purpose, sizes, int(sizes.max()))
    for order, size, held_out in zip(orders, sizes.tolist(), num_test.tolist(), strict=True):
        yield order[held_out:size].sort().values, order[:held_out].sort().values
