"""Read data frames of pandas or polars without importing them: one row per example, one column names its client."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wafl.base.errors import did_you_mean


def is_frame(value: Any) -> bool:
    """Return whether a value looks like a data frame."""
    return hasattr(type(value), "columns") and hasattr(value, "__getitem__")


class Frame:
    """A frame's columns as arrays, without missing values."""

    def __init__(self, frame: Any) -> None:
        lazy = hasattr(frame, "collect")
        if lazy or not is_frame(frame):
            hint = ": collect() it first" if lazy else ""
            raise ValueError(f"a {type(frame).__name__} is not a data frame of pandas or polars{hint}")
        self._frame = frame
        self.names = [str(name) for name in frame.columns]
        if twice := sorted({name for name in self.names if self.names.count(name) > 1}):
            raise ValueError(f"the frame has the column {twice[0]!r} twice: rename one of them")

    def check(self, name: Any, role: str, others: Sequence[str] = ()) -> None:
        """Raise ValueError for a column that does not exist; the remedy never names one of the ``others``."""
        if name not in self.names:
            free = [each for each in self.names if each not in others]
            hint = did_you_mean(str(name), free) or f": it has {', '.join(self.names)}"
            raise ValueError(f"{role}={name!r} is not a column of the frame{hint}")

    def column(self, name: str) -> NDArray[Any]:
        """Return the values of a column; raise ValueError if some are missing or infinite."""
        series = self._frame[name]
        gone = np.asarray(series.isna() if hasattr(series, "isna") else series.is_null(), dtype=bool)
        values = np.asarray(series.to_numpy())
        if values.dtype.kind == "f":
            gone = gone | np.isnan(values)
        if gone.any():
            raise ValueError(
                f"column {name!r} lacks {int(gone.sum())} of {len(gone)} values: fill them in, or drop those rows"
            )
        if values.dtype.kind == "f" and (infinite := int(np.isinf(values).sum())):
            raise ValueError(f"column {name!r} has {infinite} infinite values: correct or drop those rows")
        return values

    def inputs(self, names: Sequence[str]) -> NDArray[Any]:
        """Return columns of numbers side by side, ``[N, k]``: float64 if one of them is, otherwise float32."""
        for name in names:
            self.check(name, "features", names)
        columns = [self._numbers(name) for name in names]
        floats = [column.dtype for column in columns if column.dtype.kind == "f"]
        dtype = np.result_type(*floats) if floats else np.dtype(np.float32)
        return np.stack([column.astype(dtype) for column in columns], axis=1)

    def _numbers(self, name: str) -> NDArray[Any]:
        column = self.column(name)
        if column.dtype.kind not in "biuf":
            kind = "text" if column.dtype.kind in "OUT" else f"values of type {column.dtype}"
            raise ValueError(
                f"column {name!r} holds {kind}: encode it as numbers, such as with pandas.get_dummies, or list the "
                "columns to use, features=[...]"
            )
        return column


def read_frame(
    given: Any, client: str, target: str | Sequence[str], features: Sequence[str] | None
) -> tuple[tuple[str, ...], list[str], Iterator[tuple[NDArray[Any], NDArray[Any]]]]:
    """Return the names of the inputs, and the clients in sorted order: their names and ``(x, y)``."""
    frame = Frame(given)
    targets = [target] if isinstance(target, str) else list(target)
    frame.check(client, "client")
    for name in targets:
        frame.check(name, "target")
    if isinstance(features, str):
        raise ValueError(f"features={features!r} is one text: give a list of columns, features=[{features!r}]")
    taken = {client, *targets}
    inputs = [name for name in frame.names if name not in taken] if features is None else list(features)
    if both := [name for name in inputs if name in taken]:
        raise ValueError(f"column {both[0]!r} cannot be an input: it is the client or the target")
    if not inputs or not targets or client in targets:
        raise ValueError("a frame needs a column for the client, one for the target, and at least one other")
    x = frame.inputs(inputs)
    labels = [frame.column(name) for name in targets]
    y = labels[0] if isinstance(target, str) else frame.inputs(targets)
    names, rows = _groups(frame.column(client))
    return tuple(inputs), names, ((x[mine], y[mine]) for mine in rows)


def _groups(who: NDArray[Any]) -> tuple[list[str], Iterable[NDArray[np.int64]]]:
    """Return the different values in sorted order, numbers by size, and the rows of each."""
    values, codes = np.unique(who if who.dtype.kind in "biuf" else who.astype(np.str_), return_inverse=True)
    rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1]) if len(who) else []
    return [str(value) for value in values.tolist()], rows
