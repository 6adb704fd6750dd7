"""Load several data sets of the same classes as domains: one client per source, and an unseen target."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from wafl.base.checks import check_memory
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.data.named.datasets import Dataset, load_dataset, pack


@dataclass(frozen=True)
class Domains:
    """The sources as ``clients``, one client each; ``target`` is a federation of one client, prepared like them."""

    clients: Federation
    target: Federation


def domains(
    sources: Sequence[str],
    target: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int = 28,
    preprocess: str = "unit",
    limit: int | None = None,
) -> Domains:
    """Load data sets as domains: one client per source, and a target for testing.

    Each data set keeps its split into training and test examples.

    Args:
        sources: names of the data sets that become clients.
        target: name of the data set to test on; it must have the same classes.
        data_dir: the folder of the data sets, as in :func:`wafl.load_dataset`.
        size: the side of images, which become ``3 x size x size``.
        preprocess: as in :meth:`wafl.Dataset.partition`; statistics of a ``zscore`` come only from the sources.
        limit: the maximum number of training and of test examples of each data set, in the order of the files.
    """
    if isinstance(sources, str):
        raise ValueError(f"sources={sources!r} is one text: give a list of data sets, [{sources!r}]")
    if target in sources:
        raise ValueError(
            f"sources={list(sources)} must be distinct data sets, and target={target!r} must not be one of them"
        )
    clients = federation_of(sources, data_dir=data_dir, size=size, preprocess=preprocess, limit=limit)
    goal = _same_shape(load_dataset(target, data_dir), size, limit)
    if goal.num_classes != clients.num_classes:
        raise ValueError(f"{target} has {goal.num_classes} classes, {sources[0]} {clients.num_classes}")
    prepare = clients.train.prepare
    train, test = (
        Examples(raw, labels, torch.tensor([0, len(labels)]), prepare)
        for raw, labels in ((goal.x_train, goal.y_train), (goal.x_test, goal.y_test))
    )
    return Domains(clients, Federation(train, test, (target,), clients.unit, clients.bounds, clients.num_classes))


def federation_of(
    sources: Sequence[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int = 28,
    preprocess: str = "unit",
    limit: int | None = None,
) -> Federation:
    """Return a federation with one client per data set, as in :func:`domains`."""
    if not sources or len(set(sources)) != len(sources):
        raise ValueError(f"sources={list(sources)} must be distinct data sets, at least one")
    if size < 1 or (limit is not None and limit < 1):
        raise ValueError(f"size={size} and limit={limit} must be at least 1")
    loaded = [_same_shape(load_dataset(name, data_dir), size, limit) for name in sources]
    for other in loaded:
        if other.num_classes != loaded[0].num_classes:
            raise ValueError(f"{other.name} has {other.num_classes} classes, {loaded[0].name} {loaded[0].num_classes}")
    x = [*(each.x_train for each in loaded), *(each.x_test for each in loaded)]
    y = [*(each.y_train for each in loaded), *(each.y_test for each in loaded)]
    origin = torch.arange(len(loaded)).repeat(2).repeat_interleave(torch.tensor([len(labels) for labels in y]))
    return pack(
        torch.cat(x),
        torch.cat(y),
        [(origin == index).nonzero()[:, 0] for index in range(len(loaded))],
        num_classes=loaded[0].num_classes,
        max_value=255,
        preprocess=preprocess,
        num_train=sum(len(each.y_train) for each in loaded),
        names=list(sources),
    )


def _same_shape(dataset: Dataset, size: int, limit: int | None) -> Dataset:
    max_value = dataset.max_value
    if max_value is None:
        raise ValueError(f"{dataset.name} has measurements, and domains are made of images: use mnist, usps, svhn, ...")
    count = sum(len(y[:limit]) for y in (dataset.y_train, dataset.y_test))
    check_memory(f"{count} images of {dataset.name} with size={size}", 3.0 * count * size**2, "lower size")
    x_train, x_test = (_resized(x[:limit], max_value, size) for x in (dataset.x_train, dataset.x_test))
    return Dataset(dataset.name, x_train, dataset.y_train[:limit], x_test, dataset.y_test[:limit], dataset.num_classes)


def _resized(x: Tensor, max_value: int, size: int, chunk: int = 4096) -> Tensor:
    """Return bytes in 0 .. 255, three channels, ``size`` by ``size``: bilinear, antialiased when shrinking."""
    out = torch.empty(len(x), 3, size, size, dtype=torch.uint8)
    for begin in range(0, len(x), chunk):
        images = x[begin : begin + chunk].to(torch.float32) * (255.0 / max_value)
        if images.shape[-2:] != (size, size):
            images = functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
        out[begin : begin + chunk] = images.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1)
    return out
