"""Read data sets of torch, Hugging Face and flwr-datasets by their interfaces; only torch is imported."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

INPUTS = ("image", "img", "x", "pixel_values", "features")
LABELS = ("label", "labels", "y", "target")
BATCH = 256
"""The number of examples of a columnar data set that are decoded at a time."""

Arrays = tuple[Any, Any]


@dataclass(frozen=True)
class Columns:
    """The columns, or keys of an example, of the inputs and the target; None means their usual names."""

    features: tuple[str, ...] | None = None
    target: str | None = None

    def among(self, names: Sequence[str], labeled: bool = True) -> Self:
        """Return the inputs and the target among columns with these names."""
        target = self.target or next((name for name in LABELS if name in names), None)
        usual = next((name for name in INPUTS if name in names), None)
        others = tuple(name for name in names if name != target)
        features = self.features or ((usual,) if usual is not None else others)
        wanted = [*features, *([target] if labeled and target is not None else [])]
        if missing := [name for name in wanted if name not in names]:
            raise ValueError(f"there is no column {missing[0]!r}, only {', '.join(names)}: name one of those")
        if labeled and target is None:
            raise ValueError(
                f"no column is called {', '.join(LABELS)}: say which it is, target=... ({', '.join(names)})"
            )
        if not features:
            raise ValueError(f"there is no column of inputs, only {', '.join(names)}: name them, features=[...]")
        return replace(self, features=features, target=target)


def is_dataset(value: Any) -> bool:
    """Return whether a value is a data set or a loader for :func:`read_dataset`."""
    return isinstance(value, DataLoader | torch.utils.data.Dataset) or hasattr(value, "with_format")


def is_image(value: Any) -> bool:
    """Return whether a value is an image of PIL."""
    return hasattr(value, "getbands")


def are_images(value: Any) -> bool:
    """Return whether a value is a list of images of PIL."""
    return isinstance(value, list | tuple) and bool(value) and all(map(is_image, cast("Sequence[Any]", value)))


def read_datasets(
    datasets: Any, columns: Columns, classes: Sequence[str] | None
) -> tuple[tuple[str, ...] | None, Sequence[str] | None, Iterator[tuple[Any, ...]]]:
    """Return the names of inputs and classes, if any, and each client's arrays; classes are matched by name."""
    if is_dataset(datasets) or isinstance(datasets, str | Mapping) or not isinstance(datasets, Iterable):
        hint = ", [it.load_partition(i) for i in range(n)]" if hasattr(datasets, "load_partition") else ""
        raise ValueError(f"datasets is a {type(datasets).__name__}: pass a list with one data set per client{hint}")
    clients = [_splits(client, item) for client, item in enumerate(cast("Iterable[Any]", datasets))]
    known = [[class_names(split, columns) for split in splits] for splits in clients]
    distinct = {names for row in known for names in row} if classes is None else {None}
    if None in distinct and len(distinct) > 1:
        raise ValueError("some data sets name their classes and others do not: name them all, classes=[...]")
    shared = len(distinct) == 1

    def arrays() -> Iterator[tuple[Any, ...]]:
        for client, (splits, names) in enumerate(zip(clients, known, strict=True)):
            try:
                pairs = [read_dataset(split, columns) for split in splits]
            except ValueError as error:
                raise ValueError(f"client {client}: {error}") from error
            if not shared:
                pairs = [
                    (x, _named(y, split_classes or ())) for (x, y), split_classes in zip(pairs, names, strict=True)
                ]
            yield tuple(array for pair in pairs for array in pair)

    first = next((split for splits in clients for split in splits if _is_columnar(split)), None)
    features = columns.features if first is None else columns.among(list(first.column_names)).features
    return features, next(iter(distinct)) if shared and classes is None else classes, arrays()


def read_dataset(source: Any, columns: Columns, labeled: bool = True) -> Arrays:
    """Return all examples and labels of a data set, in its order; without labels, y is None."""
    if isinstance(source, TensorDataset) and len(source.tensors) == 1 + labeled:
        return source.tensors[0], source.tensors[1] if labeled else None
    if _is_columnar(source):
        batches = _columnar_batches(source, columns, labeled)
    elif isinstance(source, DataLoader):
        loaded = _in_order(cast("DataLoader[Any]", source))
        batches = ((_plain(x), _plain(y)) for x, y in (_pair(batch, columns, labeled) for batch in loaded))
    else:
        indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        items = (source[row] for row in range(len(source))) if indexed else source
        pairs = (_pair(item, columns, labeled) for item in items)
        batches = ((_plain(x)[None], _plain(y)[None]) for x, y in pairs)
    examples, labels = zip(*batches, strict=True) if (batches := list(batches)) else ((), ())
    if not examples:
        raise ValueError("the data set is empty: leave it out or give it at least one example")
    return _joined(examples), _joined(labels) if labeled else None


def class_names(source: Any, columns: Columns) -> tuple[str, ...] | None:
    """Return the names of the classes, if the data set, or its parent data set, knows them."""
    if _is_columnar(source):
        target = columns.among(list(source.column_names), labeled=False).target
        names = getattr((source.features or {}).get(target), "names", None)
    else:
        while not hasattr(source, "classes") and hasattr(source, "dataset"):
            source = source.dataset
        names = getattr(source, "classes", None)
    named = isinstance(names, Sequence) and not isinstance(names, str)
    return tuple(str(name) for name in cast("Sequence[Any]", names)) if named else None


def _splits(client: int, item: Any) -> list[Any]:
    """Return a client's data set, or its training and test sets."""
    if isinstance(item, Mapping):
        named = cast("Mapping[str, Any]", item)
        if set(named) != {"train", "test"}:
            raise ValueError(f"client {client} has the splits {', '.join(named)}: it must have train and test")
        item = (named["train"], named["test"])
    splits: list[Any] = list(cast("Sequence[Any]", item)) if isinstance(item, tuple | list) else [item]
    if len(splits) > 2 or not all(is_dataset(split) or hasattr(split, "__getitem__") for split in splits):
        raise ValueError(
            f"client {client} is a {type(item).__name__}: it must be a data set, or a pair (train, test) of them"
        )
    return splits


def _named(y: Any, names: Sequence[str]) -> Any:
    """Replace numbers by the names of their classes."""
    numbers = np.asarray(y)
    return np.array(names)[numbers] if numbers.dtype.kind in "iu" else y


def _is_columnar(value: Any) -> bool:
    wanted = ("column_names", "features", "with_format", "__getitem__", "__len__")
    return all(hasattr(value, name) for name in wanted)


def _columnar_batches(source: Any, columns: Columns, labeled: bool) -> Iterator[Arrays]:
    chosen = columns.among(list(source.column_names), labeled)
    features, target = chosen.features or (), chosen.target
    images = {name for name in features if type((source.features or {}).get(name)).__name__ == "Image"}
    convert = {name: _channels_first if name in images else np.asarray for name in features}
    rows = source.with_format("numpy", columns=[*features, *([target] if labeled else [])])
    for begin in range(0, len(source), BATCH):
        batch = rows[begin : begin + BATCH]
        inputs = [_joined([convert[name](np.asarray(value))[None] for value in batch[name]]) for name in features]
        x = inputs[0] if len(inputs) == 1 else np.stack(inputs, axis=1)
        yield x, np.asarray(batch[target]) if labeled else None


def _in_order(loader: DataLoader[Any]) -> Iterable[Any]:
    """Return every example of the loader, once and in the order of its data set."""
    if isinstance(loader.dataset, IterableDataset):
        return loader
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches or loader.sampler
    if getattr(sampler, "replacement", False):
        raise ValueError("this DataLoader draws with replacement: pass its data set, or a loader without replacement")
    total = len(cast(Any, loader.dataset))
    if isinstance(sampler, RandomSampler | SequentialSampler) and len(sampler) == total:
        rows: Sequence[int] = range(total)  # without a draw from torch's global generator
    else:
        drawn = (row for item in sampler for row in (item if isinstance(item, list | tuple) else [item]))
        rows = sorted({int(row) for row in drawn})
    return DataLoader(
        torch.utils.data.Subset(loader.dataset, rows),
        batch_size=None if batches is None else loader.batch_size or BATCH,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
    )


def _pair(item: Any, columns: Columns, labeled: bool) -> Arrays:
    """Return the input and the label of an example, or of a batch; None without labels."""
    if isinstance(item, Mapping):
        named = cast("Mapping[str, Any]", item)
        chosen = columns.among(list(named), labeled)
        inputs = [named[name] for name in chosen.features or ()]
        x = inputs[0] if len(inputs) == 1 else np.stack([_plain(column) for column in inputs], axis=-1)
        return x, named[chosen.target] if labeled and chosen.target is not None else None
    if isinstance(item, tuple | list):
        values = cast("Sequence[Any]", item)
        if len(values) == 2 or (len(values) == 1 and not labeled):
            return values[0], values[1] if labeled else None
        raise ValueError(f"an example has {len(values)} parts: it must be (x, y), or a dict with an input and a label")
    if labeled:
        raise ValueError(
            f"an example is a {type(item).__name__}: it must be (x, y), or a dict with an input and a label"
        )
    return item, None


def _plain(value: Any) -> NDArray[Any]:
    """Return an array; an image of PIL becomes channels, height and width."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if is_image(value):
        mode = {"1": "L", "P": "RGB", "PA": "RGBA"}.get(value.mode)
        return _channels_first(np.asarray(value if mode is None else value.convert(mode)))
    return np.asarray(value)


def _channels_first(image: NDArray[Any]) -> NDArray[Any]:
    return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        some = " and ".join(map(str, sorted(shapes)[:2]))
        raise ValueError(f"examples have different shapes, {some}: bring them to one size with a transform")
    return np.concatenate(arrays)
