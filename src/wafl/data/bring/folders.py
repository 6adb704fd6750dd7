"""Read folders of ``.npy`` files, whose examples stay on disk, and convert Parquet and Arrow files to them.

See :meth:`wafl.Federation.from_folder`. ``about.json`` may contain the names of clients, classes and inputs of a folder
with all clients in one array.
"""

import errno
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafl.base.extras import require
from wafl.base.files import read_limited, whole_folder, write_whole
from wafl.base.json_types import as_type, parsed
from wafl.data.unpack import check_npy

TOGETHER = ("x.npy", "y.npy", "offsets.npy")
TESTS = ("x_test.npy", "y_test.npy")


@dataclass(frozen=True)
class About:
    """The optional content of ``about.json``: the names of clients, classes and inputs."""

    names: list[str] | None = None
    classes: list[str] | None = None
    columns: list[str] | None = None


Together = tuple[NDArray[Any], NDArray[Any], NDArray[Any], About]
"""All clients in one array: x, y, offsets, and the content of ``about.json``."""


def read_folder(folder: Path) -> Together | dict[str, Any]:
    """Return a folder's content: all clients in one array, or each client's arrays by its name.

    Examples are mapped, not read.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: it must hold {', '.join(TOGETHER)}, or one folder per client")
    if any((folder / name).exists() for name in TOGETHER):
        x, y, offsets = (_load(folder / name, mapped=name == "x.npy") for name in TOGETHER)
        return x, y, offsets, _about(folder / "about.json")
    folders = sorted(client for client in folder.iterdir() if client.is_dir())
    if not folders:
        raise ValueError(f"{folder} holds neither {', '.join(TOGETHER)} nor one folder per client with x.npy and y.npy")
    return {client.name: _client(client) for client in folders}


def _client(folder: Path) -> tuple[NDArray[Any], ...]:
    files = ["x.npy", "y.npy", *(TESTS if any((folder / name).exists() for name in TESTS) else ())]
    return tuple(_load(folder / name, mapped=name.startswith("x")) for name in files)


def _load(path: Path, *, mapped: bool) -> NDArray[Any]:
    if not path.is_file():
        raise ValueError(f"{path} is {'not a plain file' if path.exists() else 'missing'}")
    try:
        check_npy(path)
        return np.load(path, mmap_mode="r" if mapped else None)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise ValueError(
                f"{path.parents[1]} has more clients than this system opens files: put them into one array, with "
                "offsets.npy"
            ) from error
        raise
    except ValueError as error:
        raise ValueError(f"{path} is not a .npy file of numbers or text: {error}") from error


def _about(path: Path) -> About:
    if not path.exists():
        return About()
    try:
        return as_type(About, parsed(read_limited(path)), "about.json")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_folder(
    source: Any, folder: Path, client: str, target: str, features: Sequence[str] | None, rows: int = 65_536
) -> None:
    """Write the rows of Arrow files or a table, client by client, to a new folder; they are read twice, in pieces."""
    if folder.exists():
        raise ValueError(
            f"{folder} exists: read what was written there with Federation.from_folder, or give another folder"
        )
    columns = _Columns(_open(source), [("client", client), ("target", target)], features, rows)
    counted = _Counted()
    for owners, labels in columns.batches([client, target]):
        counted.add(owners, labels)
    if not counted.sizes:
        raise ValueError("the files have no rows")
    with whole_folder(folder) as new:
        _write(new, columns.batches([client, target, *columns.features]), columns.features, counted)


def is_table(value: Any) -> bool:
    """Return whether a value is a table of pyarrow."""
    return type(value).__module__.partition(".")[0] == "pyarrow" and hasattr(value, "schema")


def read_inputs(table: Any, columns: Sequence[str] | None) -> NDArray[Any]:
    """Return the inputs of a table side by side, by the names of :func:`write_folder`; None means all columns."""
    names = table.schema.names
    features = [name if name in names else name.partition("[")[0] for name in columns or names]
    inputs = _Columns(_open(table), [], list(dict.fromkeys(features)), rows=65_536)
    batches = [
        np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)
        for columns in inputs.batches(inputs.features)
    ]
    return np.concatenate(batches) if batches else np.empty((0, len(columns or names)), np.float32)


def _write(folder: Path, batches: Iterator[list[NDArray[Any]]], features: Sequence[str], counted: "_Counted") -> None:
    offsets = np.cumsum([0, *counted.sizes.values()])
    next_rows = {name: itertools.count(begin) for name, begin in zip(counted.sizes, offsets.tolist(), strict=False)}
    y = np.empty(offsets[-1], counted.label_type)
    x: NDArray[Any] | None = None
    widths: list[int] = []
    for owners, labels, *values in batches:
        columns = [value.reshape(len(labels), -1) for value in values]
        if x is None:
            widths, kind = [column.shape[1] for column in columns], np.result_type(*columns)
            shape, kind = (len(y), sum(widths)), kind if kind.kind == "f" else np.dtype(np.float32)
            x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=kind, shape=shape)
        for feature, width, column in zip(features, widths, columns, strict=True):
            if column.shape[1] != width:
                raise ValueError(f"column {feature!r} has lists of {width} and {column.shape[1]}: all must be as long")
        positions = np.array([next(next_rows[name]) for name in map(str, owners)])
        x[positions], y[positions] = np.concatenate(columns, axis=1), counted.coded(labels)
    assert x is not None
    x.flush()
    np.save(folder / "y.npy", y)
    np.save(folder / "offsets.npy", offsets)
    names = [
        name if width == 1 else f"{name}[{index}]"
        for name, width in zip(features, widths, strict=True)
        for index in range(width)
    ]
    about = {"names": list(counted.sizes), "classes": counted.classes, "columns": names}
    write_whole(folder / "about.json", json.dumps(about).encode())


def _open(source: Any) -> Any:
    require("pyarrow", extra="parquet", what="reading Parquet and Arrow files")
    from pyarrow import ArrowInvalid, dataset

    if not isinstance(source, str | Path):
        return dataset.dataset(source)
    if not Path(source).exists():
        raise ValueError(f"{source} does not exist: give a Parquet or Arrow file, or a folder of them")
    for kind in ("parquet", "arrow"):
        try:
            return dataset.dataset(str(source), format=kind)
        except ArrowInvalid:
            continue
    raise ValueError(f"{source} is neither a Parquet nor an Arrow file, nor a folder of them")


class _Columns:
    """The columns of a data set of pyarrow, a few rows at a time and without missing values."""

    def __init__(self, data: Any, others: Sequence[tuple[str, str]], features: Sequence[str] | None, rows: int) -> None:
        self._data, self._rows, names = data, rows, list(data.schema.names)
        taken = [name for _, name in others]
        self.features = [name for name in names if name not in taken] if features is None else list(features)
        for role, name in (*others, *(("features", name) for name in self.features)):
            if name not in names:
                raise ValueError(f"{role}={name!r} is not a column: there are {', '.join(names)}")
        if not self.features:
            raise ValueError("there is no column to predict from: give features=[...]")

    def batches(self, names: list[str]) -> Iterator[list[NDArray[Any]]]:
        for batch in self._data.to_batches(columns=names, batch_size=self._rows):
            if batch.num_rows:
                yield [self._column(name, batch.column(name)) for name in names]

    def _column(self, name: str, column: Any) -> NDArray[Any]:
        from pyarrow import compute, types

        if column.null_count:
            raise ValueError(
                f"column {name!r} lacks {column.null_count} of {len(column)} values: fill them in, or drop those rows"
            )
        kind = column.type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            flat = self._numbers(name, column.flatten())
            if len(np.unique(compute.call_function("list_value_length", [column]))) > 1:
                raise ValueError(f"column {name!r} has lists of different lengths: all must be as long")
            return flat.reshape(len(column), -1)
        values = column.dictionary_decode() if types.is_dictionary(kind) else column
        return self._numbers(name, values) if name in self.features else values.to_numpy(zero_copy_only=False)

    def _numbers(self, name: str, column: Any) -> NDArray[Any]:
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "biuf":
            raise ValueError(
                f"column {name!r} holds {column.type}, not numbers: encode it, or leave it out of features"
            )
        return values


class _Counted:
    """The clients in order of appearance with their numbers of examples, and the classes, if labels are text."""

    def __init__(self) -> None:
        self.sizes = Counter[str]()
        self.label_type = np.dtype(np.int64)
        self._labels: set[str] = set()

    def add(self, owners: NDArray[Any], labels: NDArray[Any]) -> None:
        self.sizes.update(map(str, owners))
        if labels.dtype.kind == "O":
            self._labels.update(map(str, labels))
        elif labels.dtype.kind not in "biuf":
            raise ValueError(f"labels of type {labels.dtype} are neither text nor numbers: convert them first")
        else:
            self.label_type = labels.dtype

    @cached_property
    def classes(self) -> list[str] | None:
        return sorted(self._labels) or None

    def coded(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Return labels as stored: text becomes its index among the classes."""
        return labels if self.classes is None else np.searchsorted(np.array(self.classes), labels.astype(str))
