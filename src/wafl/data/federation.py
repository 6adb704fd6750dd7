"""Define federations: many clients, each with training and test examples."""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Never, Self, Unpack

import torch
from torch import Tensor

from wafl.base.bounds import check_box
from wafl.base.options import naming
from wafl.data.bring.arrays import (
    Client,
    FrameOptions,
    Options,
    Packed,
    Reading,
    pack_arrays,
    pack_offsets,
    read_options,
)
from wafl.data.bring.folders import read_folder, write_folder
from wafl.data.bring.foreign import Columns, read_datasets
from wafl.data.bring.frames import read_frame
from wafl.data.bring.intake import Intake
from wafl.data.examples import Examples
from wafl.data.mistakes import check_clients, refuse_more
from wafl.data.preprocessing import Preprocessing, refitted, standardization
from wafl.data.splits import draw_unseen
from wafl.data.summary import describe, warn_of_data


@dataclass(frozen=True)
class Federation:
    """Many clients, each with training and test examples.

    ``unit`` is the meaning of the numbers in ``x``, and ``bounds`` is their range, because every gamma, radius and
    epsilon is in these units. ``left_out`` counts the examples of a data set that no client has. ``recipe`` tells how
    to rebuild the federation, if a name and numbers are enough. ``classes`` are the names of the classes and
    ``columns`` the names of the inputs, if they have names. ``shift`` describes the shift of the examples, if they were
    shifted; tables and figures show it.
    """

    train: Examples
    test: Examples
    names: tuple[str, ...]
    unit: str = "input units"
    bounds: tuple[float, float] | None = None
    num_classes: int | None = None
    left_out: int = 0
    recipe: Mapping[str, Any] | None = None
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    shift: str = ""

    @classmethod
    def from_arrays(
        cls,
        arrays: Iterable[Client],
        *others: Never,
        **options: Unpack[Options],
    ) -> Self:
        """Pack your own data, one ``(x, y)`` pair per client, or ``(x_train, y_train, x_test, y_test)``.

        Integer labels and text make a classification task, floating-point targets a regression. Each client keeps at
        least one training example. Memory-mapped arrays stay on disk.

        Args:
            arrays: one pair per client, or two pairs: arrays of numpy or torch, or lists; read once.
            test_fraction: the fraction of each client's examples to hold out for testing; by default a quarter, if
                clients bring no test examples.
            names: one name per client; by default ``client 0``, ``client 1``, ...
            unit: the meaning of the numbers in ``x``, such as ``volts``.
            bounds: the range of all values of ``x``, if there is one.
            num_classes: the number of classes; by default one more than the highest label, and every label must occur.
            classes: the names of the classes; by default the labels themselves in sorted order, if they are text.
            preprocess: for images as bytes (uint8): ``unit``, ``symmetric``, ``zscore`` or ``zscore_pooled``, as in
                :meth:`wafl.Dataset.partition`; they stay bytes in memory.
            standardize: subtract each column's mean over all clients' training examples, and divide by its standard
                deviation; ``run.predict`` and ``run.export`` then take raw numbers, such as ``clients.test.raw``.
            seed: the seed for drawing the held-out examples.

        >>> import numpy as np, wafl
        >>> pairs = [(np.random.rand(8, 4), np.arange(8) % 2) for _ in range(3)]
        >>> wafl.Federation.from_arrays(pairs)
        Federation(3 clients, 18 training and 6 test examples of shape (4,), 2 classes)
        """
        refuse_more(
            "from_arrays",
            [arrays, *others],
            "pass from_arrays([(x, y)]) for one client, from_arrays(list(zip(xs, ys))) for lists of x and y, "
            "and options by name, such as test_fraction=0.25",
        )
        check_clients(arrays)
        reading = read_options(**options)
        return cls._of(pack_arrays(arrays, reading), reading)

    @classmethod
    def from_offsets(cls, x: Any, y: Any, offsets: Any, **options: Unpack[Options]) -> Self:
        """Pack the data of many clients in one array, one client after another.

        A million clients take seconds. A memory-mapped ``x`` stays on disk. Other arrays are not copied if nothing is
        held out, so do not change them afterwards. The split is the same as in :meth:`from_arrays`.

        Args:
            x: all examples, one row per example, an array of numpy or torch.
            y: their labels, or regression targets.
            offsets: client i has the rows ``offsets[i]:offsets[i + 1]``, so they go from 0 to the number of examples.
            options: as in :meth:`from_arrays`.

        >>> import numpy as np, wafl
        >>> x, y = np.random.rand(24, 4), np.arange(24) % 2
        >>> wafl.Federation.from_offsets(x, y, [0, 8, 16, 24])
        Federation(3 clients, 18 training and 6 test examples of shape (4,), 2 classes)
        """
        reading = read_options(**options)
        return cls._of(pack_offsets(x, y, offsets, reading), reading)

    @classmethod
    def _of(cls, packed: Packed, reading: Reading) -> Self:
        train, test, num_classes, classes = packed
        clients = cls(
            train,
            test,
            reading.client_names(train.num_clients),
            train.prepare.unit if reading.unit is None else reading.unit,
            check_box(reading.bounds) if reading.bounds is not None else train.prepare.bounds,
            num_classes,
            classes=classes,
        )
        return clients.prepared_by(standardization(train.raw, None)) if reading.standardize else clients

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        target: str | Sequence[str],
        features: Sequence[str] | None = None,
        **options: Unpack[FrameOptions],
    ) -> Self:
        """Pack a data frame of pandas or polars, one row per example.

        Clients are in sorted order. Targets of text or integers make a classification, floats a regression.

        Args:
            frame: the data frame; values must not be missing.
            client: the column with the client of each row; its values become the clients' names.
            target: the column to predict, or several for a regression with several targets.
            features: the columns of numbers to predict from; by default all others.
            options: ``test_fraction``, ``unit``, ``bounds``, ``num_classes``, ``classes``, ``standardize`` and
                ``seed``, as in :meth:`from_arrays`.

        >>> import pandas, wafl
        >>> frame = pandas.DataFrame({"who": list("abab"), "age": [1.0, 2, 3, 4], "sick": ["no", "yes", "yes", "no"]})
        >>> wafl.Federation.from_frame(frame, client="who", target="sick").classes
        ('no', 'yes')
        """
        columns, names, arrays = read_frame(frame, client, target, features)
        clients = cls.from_arrays(arrays, names=names, **options)._with_columns(columns)
        warn_of_data(clients)
        return clients

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str], **options: Unpack[Options]) -> Self:
        """Pack a folder of ``.npy`` files; the examples stay on disk and may be larger than the memory.

        The folder contains all clients in one array, one after another, as ``x.npy``, ``y.npy`` and ``offsets.npy``
        (see :meth:`from_offsets`), which suits any number of clients. Or it contains one folder per client, with the
        client's name, ``x.npy`` and ``y.npy``, and perhaps ``x_test.npy`` and ``y_test.npy``. Options are as in
        :meth:`from_arrays`.

        >>> import numpy as np, tempfile, wafl
        >>> folder = tempfile.mkdtemp()
        >>> for name, array in {"x": np.random.rand(24, 4), "y": np.arange(24) % 2, "offsets": [0, 8, 24]}.items():
        ...     np.save(f"{folder}/{name}.npy", array)
        >>> wafl.Federation.from_folder(folder)
        Federation(2 clients, 18 training and 6 test examples of shape (4,), 2 classes)
        """
        content = read_folder(Path(folder))
        if isinstance(content, dict):
            by_name: Options = {"names": list(content), **options}
            return cls.from_arrays(content.values(), **by_name)
        x, y, offsets, about = content
        named: Options = {"names": about.names, "classes": about.classes, **options}
        packed = cls.from_offsets(x, y, offsets, **named)
        return packed._with_columns(None if about.columns is None else tuple(about.columns))

    @classmethod
    def from_arrow(
        cls,
        source: Any,
        folder: str | os.PathLike[str],
        *,
        client: str,
        target: str,
        features: Sequence[str] | None = None,
        **options: Unpack[FrameOptions],
    ) -> Self:
        """Pack Parquet or Arrow files of any size, one row per example (needs ``wafl-learn[parquet]``).

        The rows are read a few at a time and written, client by client, to a folder of ``.npy`` files, where they stay.
        Next time, :meth:`from_folder` reads that folder at once.

        Args:
            source: a Parquet or Arrow file, a folder of them, or a table of pyarrow, such as ``dataset.data.table`` of
                a Hugging Face data set.
            folder: the new folder to write to.
            client: the column with the client of each row; its values become the clients' names.
            target: the column to predict, of text or numbers.
            features: the columns of numbers, or of lists of numbers, to predict from; by default all others.
            options: ``test_fraction``, ``unit``, ``bounds``, ``num_classes``, ``classes``, ``standardize`` and
                ``seed``, as in :meth:`from_arrays`.

        >>> import pyarrow, tempfile, wafl
        >>> table = pyarrow.table({"who": list("abab"), "age": [1.0, 2, 3, 4], "sick": ["no", "yes", "yes", "no"]})
        >>> wafl.Federation.from_arrow(table, tempfile.mkdtemp() + "/people", client="who", target="sick").names
        ('a', 'b')
        """
        write_folder(source, Path(folder), client, target, features)
        return cls.from_folder(folder, **options)

    @classmethod
    def from_datasets(
        cls,
        datasets: Iterable[Any],
        *others: Never,
        features: Sequence[str] | None = None,
        target: str | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """Pack one data set per client: torch's, torchvision's, Hugging Face's, or partitions of flwr-datasets.

        Examples are ``(x, y)``, or dicts; images of PIL become bytes of channels, height and width. A ``DataLoader``
        is read once, in the order of its data set. Names of classes are kept, and clients whose data sets number them
        differently are matched by name.

        Args:
            datasets: one data set or ``DataLoader`` per client, or ``(train, test)``, or a dict with these two parts.
            features: the columns or keys of the inputs; by default ``image``, ``img``, ``x``, ``pixel_values`` or
                ``features``, or all but the target.
            target: the column or key of the label; by default ``label``, ``labels``, ``y`` or ``target``.
            options: as in :meth:`from_arrays`.

        >>> import torch, wafl
        >>> sets = [torch.utils.data.TensorDataset(torch.rand(8, 4), torch.arange(8) % 2) for _ in range(3)]
        >>> wafl.Federation.from_datasets(sets)
        Federation(3 clients, 18 training and 6 test examples of shape (4,), 2 classes)
        """
        refuse_more(
            "from_datasets",
            [datasets, *others],
            "pass from_datasets([first, second]), and [(train, test)] for a client with separate test data",
        )
        asked = Columns(None if features is None else tuple(features), target)
        columns, options["classes"], arrays = read_datasets(datasets, asked, options.get("classes"))
        return cls.from_arrays(arrays, **options)._with_columns(columns)

    @naming
    def hold_out(self, share: float, *, seed: int = 0) -> tuple[Self, Self]:
        """Split the clients into clients that train and clients that never train.

        Clients keep their names, examples and split; at least one client is on each side. The statistics of a
        ``zscore``, or of ``standardize=True``, are computed again from the clients that train, for both sides. The
        clients of a smaller share are among the clients of a larger one.

        Args:
            share: the share of the clients that never train, between 0 and 1.
            seed: the seed for drawing these clients.

        Returns:
            ``(seen, unseen)``: train on the first, and test on both with ``wafl.evaluate(run, seen, unseen=unseen)``.

        >>> import wafl
        >>> clients = wafl.load_dataset("digits").partition(20, labels_per_client=3)
        >>> seen, unseen = clients.hold_out(0.2)
        >>> seen.num_clients, unseen.num_clients
        (16, 4)
        """
        seen, unseen = self.set_apart(draw_unseen(self.num_clients, share, seed)[1])
        if (recipe := self.recipe) is None:
            return seen, unseen
        before, drawn = recipe.get("held_out", []), (float(share), int(seed))
        one, other = ({**recipe, "held_out": [*before, [*drawn, side]]} for side in ("seen", "unseen"))
        return replace(seen, recipe=one), replace(unseen, recipe=other)

    def of_clients(self, chosen: Sequence[int]) -> Self:
        """Return a federation of only these clients, by index, with the same preparation."""
        return replace(
            self,
            train=self.train.of_clients(chosen),
            test=self.test.of_clients(chosen),
            names=tuple(self.names[client] for client in chosen),
            recipe=None,
        )

    def set_apart(self, held: Sequence[int]) -> tuple[Self, Self]:
        """Return the other clients, which train, and the ``held`` clients, by index, which never train.

        See :meth:`hold_out`.
        """
        kept = [client for client in range(self.num_clients) if client not in set(held)]
        if not kept or not held or not all(0 <= client < self.num_clients for client in held):
            raise ValueError(f"held={list(held)} must be some of the {self.num_clients} clients, and not all of them")
        seen, unseen = self.of_clients(kept), self.of_clients(held)
        prepare = refitted(self.train.prepare, seen.train.raw, seen.test.raw, self.columns)
        return seen.prepared_by(prepare), unseen.prepared_by(prepare)

    def prepared_by(self, prepare: Preprocessing) -> Self:
        """Return the same raw examples with another preprocessing."""
        train, test = replace(self.train, prepare=prepare), replace(self.test, prepare=prepare)
        if not prepare.takes_numbers:
            return replace(self, train=train, test=test)
        return replace(self, train=train, test=test, unit=prepare.unit, bounds=None)

    def _with_columns(self, columns: tuple[str, ...] | None) -> Self:
        """Return the federation with names of its columns."""
        named, numbers = replace(self, columns=columns), self.train.prepare.takes_numbers
        return named.prepared_by(standardization(self.train.raw, columns)) if numbers else named

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return self.train.num_clients

    @property
    def examples(self) -> Examples:
        """Each client's training examples, followed by its test examples."""
        return self.train.joined(self.test) if len(self.test.y) else self.train

    @property
    def num_examples(self) -> list[int]:
        """The number of training and test examples of each client."""
        return (self.train.num_examples + self.test.num_examples).tolist()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train.shape

    @property
    def num_outputs(self) -> int:
        """The number of outputs of a model for these clients: one per class, or per regression target."""
        return self.num_classes if self.num_classes is not None else math.prod(self.train.y.shape[1:])

    @property
    def intake(self) -> Intake:
        """The facts about the reading of the examples, and the names of their classes."""
        return Intake(self.classes, self.columns, self.train.prepare, self.input_shape)

    @property
    def title(self) -> str:
        """A short description for captions, such as ``digits, 20 clients``."""
        name = f"{self.recipe['dataset']}, " if self.recipe else ""
        return f"{name}{self.num_clients:,} client{'s' * (self.num_clients != 1)}"

    def fingerprint(self) -> dict[str, str]:
        """Return digests of all examples, which identify these data."""
        kind = json.dumps([self.num_classes, self.bounds])
        packs = {"training examples": self.train, "test examples": self.test}
        return {name: sha256(f"{kind} {pack.digest()}".encode()).hexdigest() for name, pack in packs.items()}

    def label_counts(self) -> Tensor:
        """Return each client's number of examples of each label, in training and test: ``[clients, labels]``."""
        if self.num_classes is None:
            raise ValueError("a regression has no labels to count")
        counts = torch.zeros(self.num_clients, self.num_classes, dtype=torch.int64)
        for pack in (self.train, self.test):
            client = torch.repeat_interleave(torch.arange(self.num_clients), pack.num_examples)
            counts.index_put_((client, pack.y), torch.ones_like(pack.y), accumulate=True)
        return counts

    def describe(self) -> str:
        """Return the paper's table of statistics, as text."""
        return describe(self, own_names=self._own_names())

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot the labels by client as a matplotlib figure; save it if given a path."""
        from wafl.data.figures import labels_by_client

        names = self.names if self._own_names() else None
        return labels_by_client(self.label_counts(), None if path is None else Path(path), names, self.classes)

    def _own_names(self) -> bool:
        """Return whether clients have names other than their index."""
        return not all(name.startswith("client ") for name in self.names)

    def __repr__(self) -> str:
        kind = "regression" if self.num_classes is None else f"{self.num_classes} classes"
        return (
            f"Federation({self.num_clients} clients, {len(self.train.y)} training and {len(self.test.y)} test "
            f"examples of shape {self.input_shape}, {kind})"
        )

    def __str__(self) -> str:
        clients = f"{self.num_clients:,} client{'s' * (self.num_clients != 1)}"
        examples = f"{len(self.train.y):,} training and {len(self.test.y):,} test examples"
        kind = "for a regression" if self.num_classes is None else f"in {self.num_classes} classes"
        return f"{clients} with {examples} of shape {' x '.join(map(str, self.input_shape))} {kind}"
