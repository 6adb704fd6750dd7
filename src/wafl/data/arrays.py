"""Your own arrays, one pair per client, checked and packed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wafl.core.bounds import check_box
from wafl.core.checks import check_seed
from wafl.core.options import Range
from wafl.core.random import Key, Purpose, permutation
from wafl.data.examples import Examples
from wafl.data.labels import Labels
from wafl.data.mapped import Mapped, Stored, pick
from wafl.data.mistakes import check_client, check_order, refuse_raw_images
from wafl.data.preprocessing import make_preprocessing, pixel_statistics

QUARTER = 0.25
"""What clients hold out for testing if nothing else is said."""

Client = tuple[Any, Any] | tuple[Any, Any, Any, Any]
"""``(x, y)``, or ``(x_train, y_train, x_test, y_test)``."""

Array = Tensor | NDArray[Any]

Part = tuple[Stored, Tensor]
"""Examples and their labels."""

EXACT = 2**24
"""The largest integer up to which float32, which models are given integers in, has all of them."""

MOST_DRAWN = 2**20
"""How many random numbers are drawn at a time for the split of many clients."""

_HeldOut = Range(0.0, 1.0, ": 0.25 holds a quarter out", high_open=True)


@dataclass(frozen=True)
class Packed:
    """All clients' examples; the number of classes is None for a regression, their names if they have none."""

    train: Examples
    test: Examples
    num_classes: int | None
    classes: tuple[str, ...] | None


def pack_arrays(
    arrays: Iterable[Client],
    *,
    test_fraction: float | None,
    bounds: tuple[float, float] | None,
    num_classes: int | None,
    classes: Sequence[str] | None,
    preprocess: str | None,
    seed: int,
) -> Packed:
    """See ``Federation.from_arrays``."""
    packers = _Packer(), _Packer()
    agreement = _agreement(test_fraction, bounds, num_classes, classes, preprocess, seed)
    fraction = QUARTER if test_fraction is None else test_fraction
    for block in _blocks(arrays, 256):
        first = block[0][0]
        if (together := _together(agreement, block)) is not None:
            (x, y), sizes = together
            held, num_test = held_out_rows(first, sizes, fraction, seed)
            for packer, rows, counts in zip(packers, (~held, held), (sizes - num_test, num_test), strict=True):
                packer.add(*((x, y) if bool(rows.all()) else (x[rows], y[rows])), counts.tolist())
            continue
        clients = [agreement.read(client, item) for client, item in block]
        if agreement.with_tests and test_fraction is not None:
            raise ValueError(f"test_fraction={test_fraction}, but clients have test data of their own: leave it out")
        for parts in clients if agreement.with_tests else _split(first, clients, fraction, seed):
            for packer, (x, y) in zip(packers, parts, strict=True):
                packer.add(x, y, [len(y)])
    train, test = (packer.finish() for packer in packers)
    if train.num_clients == 0:
        raise ValueError("there are no clients: pass at least one (x, y) pair")
    return _finished(agreement, train, test)


def pack_offsets(
    x: Any,
    y: Any,
    offsets: Any,
    *,
    test_fraction: float | None,
    bounds: tuple[float, float] | None,
    num_classes: int | None,
    classes: Sequence[str] | None,
    preprocess: str | None,
    seed: int,
) -> Packed:
    """See ``Federation.from_offsets``."""
    agreement = _agreement(test_fraction, bounds, num_classes, classes, preprocess, seed)
    ends = _check_offsets(offsets, len(x))
    try:
        ((examples, labels),) = agreement.read(0, (x, y))
    except ValueError:
        again = _agreement(test_fraction, bounds, num_classes, classes, preprocess, seed)
        for client, (begin, end) in enumerate(itertools.pairwise(ends.tolist())):  # whose mistake it is
            again.read(client, (x[begin:end], y[begin:end]))
        raise
    fraction, sizes = QUARTER if test_fraction is None else test_fraction, ends.diff()
    if fraction == 0.0:
        return _finished(agreement, Examples(examples, labels, ends), nothing_of(examples, labels, len(sizes)))
    held, num_test = held_out_rows(0, sizes, fraction, seed)
    parts = [
        Examples(pick(examples, rows), cast(Tensor, pick(labels, rows)), torch.cat([ends[:1], counts.cumsum(0)]))
        for rows, counts in ((~held, sizes - num_test), (held, num_test))
        for rows in [torch.from_numpy(np.flatnonzero(rows.numpy()))]  # torch takes ten times as long
    ]
    return _finished(agreement, *parts)


def nothing_of(x: Stored, y: Tensor, num_clients: int) -> Examples:
    """No examples of that many clients."""
    return Examples(x[:0], y[:0], torch.zeros(num_clients + 1, dtype=torch.int64))


def _check_offsets(offsets: Any, count: int) -> Tensor:
    ends = read_tensor(as_array(offsets))
    if ends.ndim != 1 or ends.is_floating_point() or len(ends) < 2:
        raise ValueError(
            f"offsets of shape {tuple(ends.shape)} and type {ends.dtype} must be a list of at least two whole numbers: "
            "client i has the rows offsets[i]:offsets[i + 1]"
        )
    ends = ends.to(torch.int64)
    if int(ends[0]) != 0 or int(ends[-1]) != count:
        raise ValueError(
            f"offsets go from {int(ends[0])} to {int(ends[-1])}, but must go from 0 to the number of examples, {count}"
        )
    if bool((wrong := ends.diff() <= 0).any()):
        client = int(wrong.nonzero()[0])
        raise ValueError(
            f"client {client} has the rows {int(ends[client])}:{int(ends[client + 1])}: leave it out or give it at "
            "least one example"
        )
    return ends


def _agreement(
    test_fraction: float | None,
    bounds: tuple[float, float] | None,
    num_classes: int | None,
    classes: Sequence[str] | None,
    preprocess: str | None,
    seed: int,
) -> _Agreement:
    """What clients are read with, after the options have been checked."""
    if test_fraction is not None:
        _HeldOut.check("test_fraction", test_fraction)
    check_seed(seed)
    return _Agreement(Labels(num_classes, classes), check_box(bounds), preprocess)


def _finished(agreement: _Agreement, train: Examples, test: Examples) -> Packed:
    """All clients' examples with the final labels, prepared."""
    labels, count, names = agreement.labels.finish(train.y, test.y)
    train, test = replace(train, y=labels[0]), replace(test, y=labels[1])
    if agreement.preprocess is not None:
        prepare = make_preprocessing(
            agreement.preprocess, 255, lambda pooled: pixel_statistics([train.raw, test.raw] if pooled else [train.raw])
        )
        train, test = replace(train, prepare=prepare), replace(test, prepare=prepare)
    return Packed(train, test, count, names)


def _together(agreement: _Agreement, block: list[tuple[int, Client]]) -> tuple[tuple[Tensor, Tensor], Tensor] | None:
    """The examples and labels of many clients as if they were of one, and how many each has: that is read much faster.

    None if they differ in more than their numbers, or if something is wrong, which is then said of one of them.
    """
    pairs = [item for _, item in block if isinstance(item, tuple) and len(item) == 2]  # pyright: ignore[reportUnnecessaryIsInstance]
    kinds = {type(value) for pair in pairs for value in pair}
    if len(pairs) < len(block) or kinds not in ({np.ndarray}, {Tensor}):
        return None
    if len({(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in pairs}) > 1 or pairs[0][0].ndim != 2:
        return None
    sizes = [len(x) for x, _ in pairs]
    if (
        sizes != [len(y) for _, y in pairs]
        or min(sizes) == 0
        or (kinds == {np.ndarray} and pairs[0][1].dtype.kind in "OSUT")
    ):
        return None
    join = torch.cat if kinds == {Tensor} else np.concatenate
    joined = cast(Client, tuple(join([pair[part] for pair in pairs]) for part in (0, 1)))
    try:
        ((x, y),) = agreement.read(block[0][0], joined)
    except ValueError:
        return None
    assert isinstance(x, Tensor)
    return (x, y), torch.tensor(sizes)


class _Agreement:
    """Reads clients one by one, and holds what all of them must have in common."""

    def __init__(self, labels: Labels, bounds: tuple[float, float] | None, preprocess: str | None) -> None:
        self.labels, self._bounds, self.preprocess = labels, bounds, preprocess
        self.with_tests: bool | None = None
        self._first: list[tuple[Any, ...]] | None = None

    def read(self, client: int, item: Client) -> list[Part]:
        """A client's examples and labels: all of them, or those for training and those for testing."""
        values = check_client(client, item)
        try:
            arrays = [as_array(value) for value in values]
        except (TypeError, ValueError) as error:
            raise ValueError(f"client {client} is not a pair of arrays (x, y): {error}") from error
        check_order(client, [tuple(array.shape) for array in arrays])
        with_tests = len(arrays) == 4
        if self.with_tests not in (None, with_tests):
            raise ValueError(
                f"client {client} has {'' if with_tests else 'no '}test data of its own, unlike client 0: "
                "give (x_train, y_train, x_test, y_test) to all clients or to none"
            )
        self.with_tests = with_tests
        return [self._read_part(client, *arrays[i : i + 2], test=i > 0) for i in range(0, len(arrays), 2)]

    def _read_part(self, client: int, x: Array, y: Array, test: bool) -> Part:
        try:
            examples, labels = read_stored(x), read_tensor(self.labels.encode(client, y))
        except TypeError as error:
            raise ValueError(f"client {client} is not a pair of arrays (x, y): {error}") from error
        if examples.ndim < 2 or labels.ndim < 1:
            raise ValueError(
                f"client {client} has x of shape {tuple(examples.shape)} and y of shape {tuple(labels.shape)}: "
                "x must have at least one feature dimension, and y one label per example"
            )
        if len(examples) != len(labels):
            raise ValueError(f"client {client} has {len(examples)} examples but {len(labels)} labels")
        if len(examples) == 0 and not test:
            raise ValueError(f"client {client} is empty: leave it out or give it at least one example")
        examples = self._check_values(client, examples)
        if labels.is_floating_point():
            labels = labels.to(torch.float64 if examples.dtype == torch.float64 else torch.float32)
            if not bool(torch.isfinite(labels).all()):
                raise ValueError(f"client {client} has NaN or infinity in y: clean or drop those examples")
        elif labels.ndim != 1:
            hint = "; for one-hot labels, pass y.argmax(1)" if labels.ndim == 2 else ""
            raise ValueError(
                f"client {client} has labels of shape {tuple(labels.shape)}: integer labels are one-dimensional{hint}"
            )
        else:
            labels = labels.to(torch.int64)
        self.labels.check(client, labels)
        self._check_shapes(client, examples, labels)
        return examples, labels

    def _check_values(self, client: int, x: Stored) -> Stored:
        """Refuse values that cannot be meant; bytes stay bytes if they are to be prepared."""
        if self.preprocess is not None:
            if x.dtype != torch.uint8:
                raise ValueError(
                    f"preprocess={self.preprocess!r} is for images as bytes (uint8, 0 .. 255), but client {client} "
                    f"has {str(x.dtype).removeprefix('torch.')}: leave it out, or give the images as uint8"
                )
            return x
        low, high = span(x)
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"client {client} has NaN or infinity in x: clean or drop those examples")
        if self._bounds is None:
            refuse_raw_images(client, x, low, high)
        elif len(x) and (low < self._bounds[0] or high > self._bounds[1]):
            raise ValueError(f"client {client} has values from {low:g} to {high:g}, outside bounds={self._bounds}")
        if not x.is_floating_point() and max(-low, high) > EXACT:
            raise ValueError(
                f"client {client} has integers up to {max(-low, high):.0f} in x: at most {EXACT} are exact"
            )
        return x if isinstance(x, Mapped) or x.is_floating_point() else x.to(torch.float32)

    def _check_shapes(self, client: int, x: Stored, y: Tensor) -> None:
        mine = [("examples", tuple(x.shape[1:]), x.dtype), ("labels", tuple(y.shape[1:]), y.dtype)]
        self._first = self._first or mine
        for (name, shape, dtype), (_, first_shape, first_dtype) in zip(mine, self._first, strict=True):
            if shape != first_shape or dtype != first_dtype:
                raise ValueError(
                    f"client {client} has {name} of shape {shape} and type {dtype}, "
                    f"client 0 of shape {first_shape} and type {first_dtype}: all clients must agree"
                )


def span(x: Stored) -> tuple[float, float]:
    """The lowest and the highest value, NaN if there is one; (0, 0) of nothing."""
    low, high = math.inf, -math.inf
    for part in x.split(4096):
        if part.numel():
            ends = (part if part.is_floating_point() else part.to(torch.float32)).aminmax()
            low, high = min(float(ends[0]), low), max(float(ends[1]), high)
            if not math.isfinite(low + high):
                return math.nan, math.nan
    return (low, high) if low <= high else (0.0, 0.0)


def as_array(values: Any) -> Array:
    """A tensor or an array of numpy, as it is; anything else, such as nested lists or a column of a frame, as one."""
    return values if isinstance(values, Tensor) else cast("Array", np.asanyarray(values))


def read_stored(array: Array) -> Stored:
    """Examples as a tensor, or as they are if they are memory-mapped."""
    if isinstance(array, np.memmap):
        _check_numbers(array)
        return Mapped.of(array)
    return read_tensor(array)


def read_tensor(array: Array) -> Tensor:
    """Numbers as a tensor on the CPU, not copied unless it must be."""
    if isinstance(array, Tensor):
        tensor = array.detach().cpu()
    else:
        _check_numbers(array)
        usable = array.flags.writeable and all(stride >= 0 for stride in array.strides) and array.dtype.isnative
        tensor = torch.from_numpy(array if usable else array.astype(array.dtype.newbyteorder("="), order="C"))
    # Half precision is for storage, not for ascent.
    return tensor.to(torch.float32) if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _check_numbers(array: NDArray[Any]) -> None:
    if array.dtype.kind not in "biuf":
        raise TypeError(f"an array holds values of type {array.dtype}, but it must hold numbers")


class _Packer:
    """Appends rows to one array that grows in place, so that packing never holds the data twice.

    Memory-mapped examples stay where they are, if those of the first client are.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[Any]] = []
        self._mapped: list[Mapped] = []
        self._on_disk = False
        self._ends = [0]

    def add(self, x: Stored, y: Tensor, sizes: Sequence[int]) -> None:
        """Append the examples of consecutive clients, which have that many each."""
        end = self._ends[-1] + len(x)
        if self._ends == [0]:
            self._on_disk = isinstance(x, Mapped)
        if self._on_disk:
            self._mapped.append(x if isinstance(x, Mapped) else Mapped.of(x.numpy()))
        values = (y,) if self._on_disk else (y, x[:])
        if not self._arrays:
            self._arrays = [np.empty((0, *part.shape[1:]), part.numpy().dtype) for part in values]
        for array, part in zip(self._arrays, values, strict=True):
            if end > len(array):
                array.resize((end + end // 8, *array.shape[1:]), refcheck=False)
            array[self._ends[-1] : end] = part.numpy()
        self._ends += itertools.accumulate(sizes[1:], initial=self._ends[-1] + sizes[0])

    def finish(self) -> Examples:
        for array in self._arrays:
            array.resize((self._ends[-1], *array.shape[1:]), refcheck=False)
        tensors = [torch.from_numpy(array) for array in self._arrays] or [torch.empty(0)] * 2
        x = Mapped.joined(self._mapped) if self._mapped else tensors[1]
        return Examples(x, tensors[0], torch.tensor(self._ends))


def _blocks(arrays: Iterable[Client], size: int) -> Iterator[list[tuple[int, Client]]]:
    numbered = enumerate(arrays)
    while block := list(itertools.islice(numbered, size)):
        yield block


def _split(first: int, clients: list[list[Part]], test_fraction: float, seed: int) -> Iterator[list[Part]]:
    """Each client's examples for training and for testing."""
    sizes = torch.tensor([len(y) for ((_, y),) in clients])
    for ((x, y),), rows in zip(clients, split_rows(first, sizes, test_fraction, seed), strict=True):
        yield [(pick(x, chosen), y[chosen]) for chosen in rows]


def held_out_rows(
    first: int, sizes: Tensor, test_fraction: float, seed: int, purpose: Purpose = Purpose.SPLIT
) -> tuple[Tensor, Tensor]:
    """Which of the rows of consecutive clients are for testing, and how many of each client's: those of split_rows."""
    num_test = _num_test(sizes, test_fraction)
    held = torch.zeros(int(sizes.sum()), dtype=torch.bool)
    begins = sizes.cumsum(0) - sizes
    begin, count = 0 if bool(num_test.any()) else len(sizes), MOST_DRAWN
    while begin < len(sizes):
        count = min(len(sizes) - begin, 2 * count)
        while count > 1 and count * int(sizes[begin : begin + count].max()) > MOST_DRAWN:
            count //= 2
        some = slice(begin, begin + count)
        order = _orders(first + begin, sizes[some], seed, purpose)[:, : int(num_test[some].max())]
        chosen = torch.arange(order.shape[1]) < num_test[some, None]
        held[(begins[some, None] + order)[chosen]] = True
        begin += count
    return held, num_test


def split_rows(
    first: int, sizes: Tensor, test_fraction: float, seed: int, purpose: Purpose = Purpose.SPLIT
) -> Iterator[tuple[Tensor, Tensor]]:
    """Training and test rows of consecutive clients, a random split of each client's own rows, in ascending order."""
    orders, num_test = _orders(first, sizes, seed, purpose), _num_test(sizes, test_fraction)
    for order, size, held_out in zip(orders, sizes.tolist(), num_test.tolist(), strict=True):
        yield order[held_out:size].sort().values, order[:held_out].sort().values


def _num_test(sizes: Tensor, test_fraction: float) -> Tensor:
    return torch.minimum((sizes * test_fraction).round().to(torch.int64), sizes - 1)


def _orders(first: int, sizes: Tensor, seed: int, purpose: Purpose) -> Tensor:
    """A random order of the rows of each of consecutive clients."""
    clients = torch.arange(first, first + len(sizes))
    key = Key(torch.full_like(clients, seed), torch.zeros_like(clients), clients, torch.zeros_like(clients))
    return permutation(key, purpose, sizes, int(sizes.max()))
