"""Many clients, each with its own training and test examples."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wafl.data.arrays import pack_arrays
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
        train, test, classes = pack_arrays(
            arrays, test_fraction=test_fraction, bounds=bounds, num_classes=num_classes, seed=seed
        )
        count = train.num_clients
        names = tuple(names) if names is not None else tuple(f"client {i}" for i in range(count))
        if len(names) != count or len(set(names)) != count:
            raise ValueError(f"{len(names)} client names for {count} clients: give each client one name of its own")
        return cls(train, test, names, unit, bounds, classes)

    def hold_out(self, share: float, *, seed: int = 0) -> tuple[Federation, Federation]:
        """Split the clients into those that train and those that never do.

        Clients keep their names, examples and split; at least one client is on each side. The statistics of a
        ``zscore`` are taken again from the clients that train, for both sides. The clients of a smaller share are among
        those of a larger one.

        Args:
            share: the share of the clients that never train, between 0 and 1.
            seed: what these clients are drawn from.

        Returns:
            ``(seen, unseen)``: train on the first, and test on both with ``wafl.evaluate(run, seen, unseen=unseen)``.

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
