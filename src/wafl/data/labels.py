"""Convert labels, numbers or text, to 0 .. C - 1; text becomes the names of the classes."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wafl.base.describe import some
from wafl.base.options import Count


class Labels:
    """The common properties of all clients' labels: the number of classes, and their names."""

    def __init__(self, num_classes: int | None = None, classes: Sequence[str] | None = None) -> None:
        if num_classes is not None:
            Count().check("num_classes", num_classes)
        self._given = num_classes
        self._fixed = classes is not None
        self._codes = {name: code for code, name in enumerate(_check_names(classes) if classes is not None else ())}
        if classes is not None:
            if num_classes not in (None, len(classes)):
                raise ValueError(
                    f"num_classes={num_classes}, but classes has {len(classes)} names: leave one of them out"
                )
            self._given = len(classes)
        self._text: bool | None = None

    def encode(self, client: int, y: Any) -> Any:
        """Return labels as numbers; text is numbered in the order of its appearance."""
        array = y if isinstance(y, Tensor) else np.asarray(y)
        text = not isinstance(array, Tensor) and array.dtype.kind in "OSUT"
        if self._text is not None and text != self._text:
            kinds = ("text", "numbers") if text else ("numbers", "text")
            raise ValueError(f"client {client} has {kinds[0]} as labels, client 0 {kinds[1]}: all clients must agree")
        self._text = text
        return self._number(client, cast("NDArray[Any]", array)) if text else array

    def _number(self, client: int, array: NDArray[Any]) -> NDArray[np.int64]:
        if array.ndim != 1:
            raise ValueError(f"client {client} has text labels of shape {array.shape}: give one label per example")
        if self._given is not None and not self._fixed:
            raise ValueError(f"num_classes={self._given} is for labels that are numbers: name them all, classes=[...]")
        names, codes = _distinct(client, array)
        if self._fixed and (unknown := [name for name in names if name not in self._codes]):
            raise ValueError(
                f"client {client} has the label {unknown[0]!r}, which is not in classes: {some(list(self._codes), 8)}"
            )
        table = [self._codes.setdefault(name, len(self._codes)) for name in names]
        return np.array(table, dtype=np.int64)[codes] if table else np.zeros(0, dtype=np.int64)

    def check(self, client: int, y: Tensor) -> None:
        """Raise ValueError for numbers that cannot be classes."""
        if y.is_floating_point():
            if self._given is not None:
                raise ValueError("num_classes is for integer labels, but these are floating-point targets")
            return
        low, high = (int(value) for value in y.aminmax()) if len(y) else (0, 0)
        if low < 0 or (self._given is not None and high >= self._given):
            last = high if self._given is None else self._given - 1
            raise ValueError(
                f"client {client} has labels from {low} to {high}: they must lie in 0 .. {last}; renumber them, "
                "or give them as text (y.astype(str)), which is kept as names"
            )

    def finish(self, *splits: Tensor) -> tuple[list[Tensor], int | None, tuple[str, ...] | None]:
        """Return all labels in their final numbers, the number of classes (None for a regression), and their names."""
        if splits[0].is_floating_point():
            return list(splits), None, None
        if not self._text:
            highest = max(int(split.max()) for split in splits if len(split))
            if self._given is None:
                _refuse_gaps(splits, highest)
            return list(splits), self._given or highest + 1, tuple(self._codes) or None
        names = tuple(self._codes) if self._fixed else tuple(sorted(self._codes))
        codes = {name: code for code, name in enumerate(names)}
        final = torch.tensor([codes[name] for name in self._codes])
        return [final[split] for split in splits], len(names), names


def count_classes(labels: Sequence[Tensor | NDArray[Any]]) -> int | None:
    """Return one more than the highest label, for clients that may lack some classes; None for targets."""
    arrays = [np.asarray(y) for y in labels]
    highest = [int(y.max()) for y in arrays if y.dtype.kind in "iu" and y.size]
    return max(*highest, 0) + 1 if highest else None


def _check_names(classes: Any) -> list[str]:
    names: list[Any] = [] if isinstance(classes, str) or not isinstance(classes, Iterable) else list(classes)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"classes={classes!r} must be a list of names, one text per class, in the order of the labels")
    if len(set(names)) != len(names):
        raise ValueError(f"classes={names} names a class twice: give each class a different name")
    return names


def _distinct(client: int, array: NDArray[Any]) -> tuple[list[str], NDArray[Any]]:
    """Return the different texts, and the index of each label among them."""
    if array.dtype.kind == "O":
        if odd := [value for value in array.tolist() if not isinstance(value, str)]:
            raise ValueError(f"client {client} has the label {odd[0]!r} among text: drop examples without a label")
        array = array.astype(np.str_)
    names, codes = np.unique(array, return_inverse=True)
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()], codes


def _refuse_gaps(splits: Sequence[Tensor], highest: int) -> None:
    """Raise ValueError for a class without examples, a mistake unless the number of classes was given."""
    if highest < 2**16:  # counting all labels is then much faster than sorting them
        counts = torch.stack([torch.bincount(split, minlength=highest + 1) for split in splits]).sum(0)
        if bool((counts > 0).all()):
            return
    seen = torch.cat([split.unique() for split in splits]).unique().tolist()
    if len(seen) <= highest:
        raise ValueError(
            f"the labels skip classes (of 0 .. {highest}, only {some(seen, 8)} occur): renumber them from 0, or give "
            "them as text (y.astype(str)), which is kept as names; if the others do exist, pass "
            f"num_classes={highest + 1}"
        )
