"""Many clients, each with its own training and test examples."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wafl.core.checks import check_bounds, check_seed
from wafl.core.random import Key, Purpose, permutation
from wafl.data.examples import Examples
from wafl.data.preprocessing import Preprocessing, refitted
from wafl.data.unseen import draw_unseen


@dataclass(frozen=True)
class Federation:
    """Many clients, each with its own training and test examples.

    ``unit`` says what the numbers in ``x`` mean and ``bounds`` gives the range they lie in, because every gamma,
    radius and epsilon is in those units. ``left_out`` counts the examples of a data set that no client has; ``recipe``
    says how to rebuild the federation, if a name and numbers are enough for that.
    """

    train: Examples
    test: Examples
    names: tuple[str, ...]
    unit: str = "input units"
    bounds: tuple[float, float] | None = None
    num_classes: int | None = None
    left_out: int = 0
    recipe: Mapping[str, Any] | None = None

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
        """Pack your own data, one ``(x, y)`` pair per client.

        Integer labels make a classification task, floating-point targets a regression. Each client keeps at
        least one training example.

        Args:
            arrays: one ``(x, y)`` pair per client, arrays of numpy or torch or lists; read once.
            test_fraction: the part of each client's examples that is held out for testing.
            names: one name per client; by default ``client 0``, ``client 1``, ...
            unit: what the numbers in ``x`` mean, such as ``volts``.
            bounds: the range that all values of ``x`` lie in, if there is one.
            num_classes: by default one more than the highest label.
            seed: what the held-out examples are drawn from.

        >>> import numpy as np, wafl
        >>> pairs = [(np.random.rand(8, 4), np.arange(8) % 2) for _ in range(3)]
        >>> wafl.Federation.from_arrays(pairs)
        Federation(3 clients, 18 training and 6 test examples of shape (4,), 2 classes)
        """
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
        count = train.num_clients
        if count == 0:
            raise ValueError("there are no clients: pass at least one (x, y) pair")
        names = tuple(names) if names is not None else tuple(f"client {i}" for i in range(count))
        if len(names) != count or len(set(names)) != count:
            raise ValueError(f"{len(names)} client names for {count} clients: give each client one name of its own")
        return cls(train, test, names, unit, bounds, shapes.num_classes())

    def hold_out(self, share: float, *, seed: int = 0) -> tuple[Federation, Federation]:
        """Split the clients into those that train and those that never do.

        Clients keep their names, examples and split; at least one client is on each side. The statistics of a
        ``zscore`` are taken again from the clients that train, for both sides. The clients of a smaller share are among
        those of a larger one.

        Args:
            share: the share of the clients that never train, between 0 and 1.
            seed: what these clients are drawn from.

        Returns:
            ``(seen, unseen)``: train on the first, test on both.

        >>> import wafl
        >>> clients = wafl.load_dataset("digits").partition(20, labels_per_client=3)
        >>> seen, unseen = clients.hold_out(0.2)
        >>> seen.num_clients, unseen.num_clients
        (16, 4)
        """
        kept, held = draw_unseen(self.num_clients, share, seed)
        seen, unseen = (
            self._part(chosen, [float(share), int(seed), side]) for chosen, side in ((kept, "seen"), (held, "unseen"))
        )
        prepare = refitted(self.train.prepare, seen.train.raw, seen.test.raw)
        return seen._prepared_by(prepare), unseen._prepared_by(prepare)

    def _part(self, chosen: Sequence[int], why: list[Any]) -> Federation:
        """These clients alone, whose recipe says why."""
        return replace(
            self,
            train=self.train.of_clients(chosen),
            test=self.test.of_clients(chosen),
            names=tuple(self.names[client] for client in chosen),
            recipe=self.recipe and {**self.recipe, "held_out": [*self.recipe.get("held_out", []), why]},
        )

    def _prepared_by(self, prepare: Preprocessing) -> Federation:
        return replace(self, train=replace(self.train, prepare=prepare), test=replace(self.test, prepare=prepare))

    @property
    def num_clients(self) -> int:
        return self.train.num_clients

    @property
    def num_examples(self) -> list[int]:
        """How many training and test examples each client has."""
        return (self.train.num_examples + self.test.num_examples).tolist()

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.train.shape

    @property
    def num_outputs(self) -> int:
        """How many outputs a model for these clients has: one per class, or per target of a regression."""
        return self.num_classes if self.num_classes is not None else math.prod(self.train.y.shape[1:])

    def label_counts(self) -> Tensor:
        """How many examples of each label each client has, training and test together: ``[clients, labels]``."""
        if self.num_classes is None:
            raise ValueError("a regression has no labels to count")
        counts = torch.zeros(self.num_clients, self.num_classes, dtype=torch.int64)
        for pack in (self.train, self.test):
            client = torch.repeat_interleave(torch.arange(self.num_clients), pack.num_examples)
            counts.index_put_((client, pack.y), torch.ones_like(pack.y), accumulate=True)
        return counts

    def describe(self) -> str:
        """The paper's table of statistics, as text."""
        sizes = torch.tensor(self.num_examples, dtype=torch.float64)
        rows = [
            ("clients", f"{self.num_clients}"),
            ("examples", f"{int(sizes.sum()):,}" + (f" ({self.left_out:,} left out)" if self.left_out else "")),
            ("training / test", f"{len(self.train.y):,} / {len(self.test.y):,}"),
            ("examples per client", f"mean {sizes.mean():.1f}, std {sizes.std(correction=0):.1f}"),
            ("", f"min {int(sizes.min())}, max {int(sizes.max())}"),
        ]
        if self.num_classes is not None:
            held = (self.label_counts() > 0).sum(1)
            spread = f"{int(held.min())}" if held.min() == held.max() else f"{int(held.min())} to {int(held.max())}"
            rows.append(("labels per client", f"{spread} of {self.num_classes}"))
        rows += [("shape", f"{self.input_shape}"), ("unit", self.unit)]
        return "\n".join(f"{name:<20} {value}" for name, value in rows)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The picture of labels by client, as a matplotlib figure; it is also written to ``path``, if given."""
        from wafl.plotting import labels_by_client

        return labels_by_client(self.label_counts(), None if path is None else Path(path))

    def __repr__(self) -> str:
        task = "regression" if self.num_classes is None else f"{self.num_classes} classes"
        return (
            f"Federation({self.num_clients} clients, {len(self.train.y)} training and {len(self.test.y)} test "
            f"examples of shape {self.input_shape}, {task})"
        )


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


def split_rows(first: int, sizes: Tensor, test_fraction: float, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Training and test rows of consecutive clients, a random split of each client's own rows, in ascending order."""
    num_test = torch.minimum((sizes * test_fraction).round().to(torch.int64), sizes - 1)
    clients = torch.arange(first, first + len(sizes))
    key = Key(torch.full_like(clients, seed), torch.zeros_like(clients), clients, torch.zeros_like(clients))
    orders = permutation(key, Purpose.SPLIT, sizes, int(sizes.max()))
    for order, size, held_out in zip(orders, sizes.tolist(), num_test.tolist(), strict=True):
        yield order[held_out:size].sort().values, order[:held_out].sort().values
