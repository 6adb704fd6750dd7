"""Check and pack your own arrays, one pair per client."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wafl.base.bounds import check_box
from wafl.base.checks import check_seed
from wafl.base.options import Range, naming
from wafl.data.examples import Examples, Packer
from wafl.data.labels import Labels
from wafl.data.mapped import Mapped, Stored, pick
from wafl.data.mistakes import check_client, check_order, refuse_raw_images
from wafl.data.preprocessing import make_preprocessing
from wafl.data.splits import held_out_rows, split_rows

Client = tuple[Any, Any] | tuple[Any, Any, Any, Any]
"""A client's data: ``(x, y)``, or ``(x_train, y_train, x_test, y_test)``."""

Array = Tensor | NDArray[Any]

Split = tuple[Stored, Tensor]
"""Examples and their labels."""
EXACT = 2**24
"""The largest integer up to which float32, the type of integers in models, represents all integers."""
FEW, MANY, PIECE = 256, 4096, 2**26
"""The number of clients that are read together: few, or up to many within PIECE bytes."""


class FrameOptions(TypedDict, total=False):
    """The options of :meth:`wafl.Federation.from_arrays` for every kind of data."""

    test_fraction: float | None
    unit: str | None
    bounds: tuple[float, float] | None
    num_classes: int | None
    classes: Sequence[str] | None
    standardize: bool
    seed: int


class Options(FrameOptions, total=False):
    """All options of :meth:`wafl.Federation.from_arrays`."""

    names: Sequence[str] | None
    preprocess: str | None


Packed = tuple[Examples, Examples, int | None, tuple[str, ...] | None]
"""Training and test examples, the number of classes (None for a regression), and the names of classes, if any."""


@dataclass(frozen=True)
class Reading:
    """The checked options of ``Federation.from_arrays``."""

    test_fraction: float | None = None
    names: Sequence[str] | None = None
    unit: str | None = None
    bounds: tuple[float, float] | None = None
    num_classes: int | None = None
    classes: Sequence[str] | None = None
    preprocess: str | None = None
    standardize: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.preprocess is not None and self.bounds is not None:
            raise ValueError(f"bounds={self.bounds} follow from preprocess={self.preprocess!r}: leave them out")
        if self.standardize:
            for name in ("preprocess", "bounds", "unit"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"standardize=True makes standard deviations of all inputs, without bounds: leave out "
                        f"{name}={value!r}"
                    )
        if self.test_fraction is not None:
            Range(0.0, 1.0, ": 0.25 holds a quarter out", high_open=True).check("test_fraction", self.test_fraction)
        check_seed(self.seed)

    @property
    def fraction(self) -> float:
        """The fraction of each client's examples to hold out, if clients bring no test examples."""
        return 0.25 if self.test_fraction is None else self.test_fraction

    def client_names(self, count: int) -> tuple[str, ...]:
        """Return one name for each of ``count`` clients."""
        if self.names is None:
            return tuple([f"client {i}" for i in range(count)])
        if isinstance(self.names, str):
            raise ValueError(f"names={self.names!r} is one text: give a list with one name per client")
        given = tuple(str(name) for name in self.names)
        if len(given) != count or len(set(given)) != count:
            raise ValueError(f"{len(given)} client names for {count} clients: give each client a different name")
        return given


read_options = naming(Reading, "Federation")
"""Make a reading from options; an error about an unknown one names the closest."""


def pack_arrays(arrays: Iterable[Client], reading: Reading) -> Packed:
    """Pack all clients' examples; see ``Federation.from_arrays``."""
    packers = Packer(), Packer()
    agreement = _Agreement(reading)
    for first, block in _blocks(arrays):
        if (together := _together(agreement, first, block)) is not None:
            splits = _split_together(first, *together, reading.fraction, reading.seed)
            for packer, (x, y, sizes) in zip(packers, splits, strict=True):
                packer.add(x, y, sizes)
            continue
        clients = [agreement.read(client, item) for client, item in enumerate(block, first)]
        if agreement.with_tests and reading.test_fraction is not None:
            raise ValueError(
                f"test_fraction={reading.test_fraction}, but clients have test data of their own: leave it out"
            )
        for splits in clients if agreement.with_tests else _split(first, clients, reading.fraction, reading.seed):
            for packer, (x, y) in zip(packers, splits, strict=True):
                packer.add(x, y, torch.tensor([len(y)]))
    train, test = (packer.finish() for packer in packers)
    if train.num_clients == 0:
        raise ValueError("there are no clients: pass at least one (x, y) pair")
    return _finished(agreement, train, test)


def pack_offsets(x: Any, y: Any, offsets: Any, reading: Reading) -> Packed:
    """Pack all clients' examples; see ``Federation.from_offsets``."""
    agreement = _Agreement(reading)
    ends = _check_offsets(offsets, len(x))
    try:
        ((examples, labels),) = agreement.read(0, (x, y))
    except ValueError:
        again = _Agreement(reading)
        for client, (begin, end) in enumerate(itertools.pairwise(ends.tolist())):  # whose mistake it is
            again.read(client, (x[begin:end], y[begin:end]))
        raise
    splits = [
        Examples(x, y, torch.cat([ends[:1], counts.cumsum(0)]))
        for x, y, counts in _split_together(0, examples, labels, ends.diff(), reading.fraction, reading.seed)
    ]
    return _finished(agreement, *splits)


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


def _finished(agreement: "_Agreement", train: Examples, test: Examples) -> Packed:
    """Return all clients' examples with the final labels, prepared."""
    labels, count, names = agreement.labels.finish(train.y, test.y)
    train, test = replace(train, y=labels[0]), replace(test, y=labels[1])
    if agreement.preprocess is not None:
        prepare = make_preprocessing(agreement.preprocess, 255, train.raw, test.raw)
        train, test = replace(train, prepare=prepare), replace(test, prepare=prepare)
    return train, test, count, names


def _blocks(arrays: Iterable[Client]) -> Iterator[tuple[int, list[Client]]]:
    """Yield many clients at a time, with the index of the first: a few hundred, or thousands if they are small."""
    items, first, count = iter(arrays), 0, FEW
    while block := list(itertools.islice(items, count)):
        yield first, block
        first += len(block)
        largest = max(sum(getattr(values, "nbytes", PIECE) for values in item) for item in block[::FEW])
        count = max(FEW, min(MANY, PIECE // max(1, largest)))


def _together(agreement: "_Agreement", first: int, block: list[Client]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Read many clients as one, which is much faster; return None if they differ or are wrong."""
    if set(map(type, block)) != {tuple} or set(map(len, block)) != {2}:
        return None
    columns = [[pair[index] for pair in block] for index in (0, 1)]
    kinds = set(map(type, itertools.chain(*columns)))
    if kinds not in ({np.ndarray}, {Tensor}) or not all(map(_of_one_type, columns)):
        return None
    x, y = columns[0][0], columns[1][0]
    if x.ndim != 2 or (kinds == {np.ndarray} and y.dtype.kind in "OSUT"):
        return None
    try:
        sizes, counts = (list(map(len, column)) for column in columns)
        if sizes != counts or min(sizes) == 0:
            return None
        x, y = ((torch.cat if kinds == {Tensor} else np.concatenate)(column) for column in columns)
        ((x, y),) = agreement.read(first, (x, y))
    except (TypeError, ValueError, RuntimeError):  # arrays of other shapes, or on another device, cannot be joined
        return None
    assert isinstance(x, Tensor)
    return x, y, torch.from_numpy(np.array(sizes))


def _of_one_type(arrays: list[Any]) -> bool:
    types = [array.dtype for array in arrays]
    return types.count(types[0]) == len(types)


def _split_together(
    first: int, x: Stored, y: Tensor, sizes: Tensor, test_fraction: float, seed: int
) -> Iterator[tuple[Stored, Tensor, Tensor]]:
    """Yield the training and test parts of consecutive clients, with each client's number of examples."""
    held, num_test = held_out_rows(first, sizes, test_fraction, seed)
    if not bool(num_test.any()):
        yield x, y, sizes
        yield x[:0], y[:0], num_test
        return
    for chosen, counts in ((~held, sizes - num_test), (held, num_test)):
        rows = torch.from_numpy(np.flatnonzero(chosen.numpy()))  # torch takes ten times as long
        yield pick(x, rows), cast(Tensor, pick(y, rows)), counts


class _Agreement:
    """A reader of clients one by one, which checks their common properties."""

    def __init__(self, reading: Reading) -> None:
        self.labels = Labels(reading.num_classes, reading.classes)
        self._bounds, self.preprocess = check_box(reading.bounds), reading.preprocess
        self.with_tests: bool | None = None
        self._first: list[tuple[Any, ...]] | None = None

    def read(self, client: int, item: Client) -> list[Split]:
        """Return a client's examples and labels: all of them, or the training and test parts."""
        values = check_client(client, item)
        try:
            arrays = [as_array(value) for value in values]
        except (TypeError, ValueError) as error:
            raise ValueError(f"client {client} is not a pair of arrays (x, y): {error}") from error
        check_order(client, [tuple(array.shape) for array in arrays])
        with_tests = len(arrays) == 4
        if self.with_tests not in (None, with_tests):
            raise ValueError(
                f"client {client} has {'' if with_tests else 'no '}own test data, unlike client 0: "
                "give (x_train, y_train, x_test, y_test) to all clients or to none"
            )
        self.with_tests = with_tests
        return [self._read_split(client, *arrays[i : i + 2], test=i > 0) for i in range(0, len(arrays), 2)]

    def _read_split(self, client: int, x: Array, y: Array, test: bool) -> Split:
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
        """Raise ValueError for impossible values; bytes stay bytes if they will be prepared."""
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
    """Return the lowest and the highest value, NaN if there is one; (0, 0) for no values."""
    low, high = math.inf, -math.inf
    for chunk in x.split(4096):
        if chunk.numel():
            values = chunk.numpy()  # whose extremes take numpy half as long as torch
            low, high = min(float(values.min()), low), max(float(values.max()), high)
            if not math.isfinite(low + high):
                return math.nan, math.nan
    return (low, high) if low <= high else (0.0, 0.0)


def as_array(values: Any) -> Array:
    """Return a tensor or numpy array unchanged, and anything else, such as lists or a frame's column, as an array."""
    return values if isinstance(values, Tensor) else cast("Array", np.asanyarray(values))


def read_stored(array: Array) -> Stored:
    """Return examples as a tensor, or unchanged if they are memory-mapped."""
    if isinstance(array, np.memmap):
        _check_numbers(array)
        return Mapped.of(array)
    return read_tensor(array)


def read_tensor(array: Array) -> Tensor:
    """Return numbers as a tensor on the CPU, copied only if necessary."""
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


def _split(first: int, clients: list[list[Split]], test_fraction: float, seed: int) -> Iterator[list[Split]]:
    """Yield each client's examples for training and for testing."""
    sizes = torch.tensor([len(y) for ((_, y),) in clients])
    for ((x, y),), rows in zip(clients, split_rows(first, sizes, test_fraction, seed), strict=True):
        yield [(pick(x, chosen), y[chosen]) for chosen in rows]
