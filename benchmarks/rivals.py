"""Robust methods side by side, tuned alike: on unseen angles, domains and people, and with garbage among the examples.

    .venv/bin/python benchmarks/rivals.py [--only rotated people domains garbage] [--data-dir FOLDER] [--smallest]

Multinomial logistic regression. Of each method, three settings of its main parameter train, and the one that is best on
the test examples of the clients that trained is tested on what none of them has seen; accuracy in percent, mean and
standard deviation over the seeds.

    rotated   digits, four clients at 0, 15, 30 and 45 degrees; unseen: 60 degrees. Seeds decide who has which digits.
    people    a smartwatch's exercises by subject, and vowels by men, women and children (peterson-kinds); unseen: a
              third of the clients, by seed. What is not installed is left out.
    domains   500 images each of MNIST and SVHN are two clients; unseen: USPS. Seeds decide the batches.
    garbage   digits, ten like clients; 5% of the training examples are replaced by bright noise with any label. The
              same settings for all; cost is what the garbage takes, and how much less than from WAFL, with a 95%
              interval of the mean, paired by seed.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

import options
import wafl
from wafl.core.bounds import within
from wafl.core.errors import TrainingWarning
from wafl.data.cache import data_folder

ANGLES, UNSEEN = (0.0, 15.0, 30.0, 45.0), 60.0
SCHEDULE: dict[str, Any] = {"local_epochs": 1, "batch_size": 32}
RATES = {"rotated": 0.1, "people": 0.05, "domains": 0.02, "garbage": 0.02}


@dataclass(frozen=True)
class Rival:
    """A method, and the settings of its main parameter that are tried."""

    make: Callable[[], wafl.Method]
    grid: dict[str, list[Any]]


RIVALS: dict[str, Rival] = {
    "FedAvg": Rival(wafl.FedAvg, {}),
    "WAFL": Rival(wafl.WAFL, {"gamma": [0.2, 1.0, 5.0]}),
    "WAFL, shape of clients": Rival(lambda: wafl.WAFL(shape="clients"), {"gamma": [0.2, 1.0, 5.0]}),
    "SinkhornDRO": Rival(lambda: wafl.SinkhornDRO(samples=2), {"gamma": [0.2, 1.0, 5.0]}),
    "FedPGM": Rival(lambda: wafl.FedPGM(norm=2, steps=5), {"epsilon": [0.1, 0.3, 1.0]}),
    "GroupDRO": Rival(wafl.GroupDRO, {"weights_step": [0.01, 0.1, 1.0]}),
    "CVaR": Rival(wafl.CVaR, {"alpha": [0.25, 0.5, 0.75]}),
    "REx": Rival(wafl.REx, {"beta": [0.1, 1.0, 10.0]}),
    "IRM": Rival(wafl.IRM, {"penalty": [0.1, 1.0, 10.0]}),
    "FedGMA": Rival(wafl.FedGMA, {"threshold": [0.2, 0.4, 0.8]}),
}


def rotated(seed: int) -> tuple[wafl.Federation, wafl.Federation]:
    """Digits whose clients each see them at one angle, and the test examples of all at another."""
    clients = wafl.load_dataset("digits").partition(num_clients=len(ANGLES), iid=True, preprocess="unit", seed=seed)

    def at(angles: Sequence[float]) -> wafl.Federation:
        parts: list[Any] = []
        for client, angle in enumerate(angles):
            turn = within(wafl.shifts.rotation(severity=angle / 90.0), clients.bounds)
            (x, y), (x_test, y_test) = clients.train.of(client), clients.test.of(client)
            parts.append((turn.apply(x).numpy(), y.numpy(), turn.apply(x_test).numpy(), y_test.numpy()))
        return wafl.Federation.from_arrays(parts, bounds=clients.bounds, num_classes=10)

    return at(ANGLES), at([UNSEEN] * len(ANGLES))


def people(name: str) -> Callable[[int], tuple[wafl.Federation, wafl.Federation]]:
    return lambda seed: wafl.load_dataset(name).partition(seed=seed).hold_out(1 / 3, seed=seed)


def settings(given: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[int], tuple[Any, Any]]]]:
    """The kind of each setting, its name, and its clients by seed: those that train, and those that are unseen."""
    if "rotated" in given.only:
        yield "rotated", "rotated digits", rotated
    if "people" in given.only:
        for name in ("smartwatch", "peterson-kinds"):
            try:
                wafl.load_dataset(name)
            except (ImportError, FileNotFoundError, ValueError):
                continue
            yield "people", name, people(name)
    folder = data_folder(given.data_dir)
    if "domains" in given.only and all((folder / f"{name}.npz").exists() for name in ("mnist", "svhn", "usps")):
        found = wafl.domains(["mnist", "svhn"], "usps", data_dir=folder, size=14, limit=500)
        yield "domains", "MNIST, SVHN to USPS", lambda seed: (found.clients, found.target)


def accuracy(run: wafl.Run, clients: wafl.Federation) -> float:
    return 100.0 * (wafl.evaluate(run, clients).accuracy or 0.0)


def tuned(rival: Rival, seen: wafl.Federation, unseen: wafl.Federation, seed: int, given: argparse.Namespace) -> float:
    """The accuracy on unseen clients of the setting that is best on those that trained."""
    grid = {name: values[: given.settings] for name, values in rival.grid.items()} or {"seed": [seed]}
    schedule: dict[str, Any] = {**SCHEDULE, "rounds": given.rounds, "learning_rate": given.rate}
    if "seed" not in grid:
        schedule["seed"] = seed
    runs = wafl.sweep(wafl.models.mlr(seen), seen, rival.make(), grid, **schedule)
    best = max((run for run in runs if not run.diverged), key=lambda run: accuracy(run, seen))
    return accuracy(best, unseen)


def spoiled(clients: wafl.Federation, seed: int, share: float = 0.05) -> wafl.Federation:
    """The clients, this share of whose training examples are bright noise with any label."""
    generator, train = torch.Generator().manual_seed(seed), clients.train
    rows = torch.randperm(len(train.y), generator=generator)[: round(share * len(train.y))]
    raw, y = train.raw[:].clone(), train.y.clone()
    raw[rows] = torch.randint(128, raw[rows].shape, generator=generator, dtype=raw.dtype)
    y[rows] = torch.randint(10, (len(rows),), generator=generator)
    return replace(clients, train=replace(train, raw=raw, y=y))


def with_garbage(method: wafl.Method, seed: int, given: argparse.Namespace) -> tuple[float, float]:
    """The accuracy without and with garbage among the training examples."""
    clients = wafl.load_dataset("digits").partition(num_clients=10, iid=True, preprocess="zscore", seed=seed)
    found: list[float] = []
    for each in (clients, spoiled(clients, 1000 + seed)):
        schedule: dict[str, Any] = {
            **SCHEDULE,
            "local_epochs": 2,
            "rounds": 2 * given.rounds,
            "learning_rate": RATES["garbage"],
        }
        found.append(accuracy(wafl.fit(wafl.models.mlr(clients), each, method, seed=seed, **schedule), clients))
    return found[0], found[1]


def interval(values: Sequence[float]) -> str:
    """Student's 95% interval of the mean."""
    if len(values) < 2:
        return ""
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values) - half:.1f} to {fmean(values) + half:.1f}"


def shown(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ± {stdev(values) if len(values) > 1 else 0.0:.1f}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(RATES), default=["rotated", "people"])
    parser.add_argument("--methods", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--settings", type=int, default=3, help="of each method")
    parser.add_argument("--data-dir", type=Path)
    small: dict[str, Any] = {
        "seeds": [0],
        "rounds": 1,
        "settings": 1,
        "only": ["rotated", "garbage"],
        "methods": ["FedAvg", "WAFL"],
    }
    given = options.read(parser, argv, **small)
    warnings.simplefilter("ignore", TrainingWarning)
    console = Console(width=200)
    columns: dict[str, list[str]] = {}
    for kind, name, make in settings(given):
        given.rate = RATES[kind]
        pairs = {seed: make(seed) for seed in given.seeds}
        columns[name] = [
            shown([tuned(RIVALS[each], *pairs[seed], seed, given) for seed in given.seeds]) for each in given.methods
        ]
    if columns:
        table = Table("method, on what it has not seen", *columns)
        for place, name in enumerate(given.methods):
            table.add_row(name, *(cells[place] for cells in columns.values()))
        console.print(table)
    if "garbage" in given.only:
        table = Table("method, with garbage", "without", "with 5% garbage", "cost", "less than WAFL")
        baseline: list[float] = []
        methods = [wafl.WAFL(gamma=0.5), wafl.FedAvg(), wafl.ResilientWAFL(gamma=0.5, temperature=4.0)]
        for method in methods:
            found = [with_garbage(method, seed, given) for seed in given.seeds]
            costs = [before - after for before, after in found]
            baseline = baseline or costs
            less = [one - other for one, other in zip(baseline, costs, strict=True)]
            cells = ([before for before, _ in found], [after for _, after in found], costs)
            table.add_row(method.name, *map(shown, cells), "" if less == [0.0] * len(less) else interval(less))
        console.print(table)


if __name__ == "__main__":
    main()
