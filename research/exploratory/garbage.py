"""Measure the cost of garbage among the training examples for WAFL, FedAvg and ResilientWAFL.

    python -m research garbage [--seeds 0 1 ...] [--smallest]

Multinomial logistic regression on digits, ten like clients; 5% of the training examples are replaced by bright noise
with any label. The same settings for all. Accuracy is in percent, as mean and standard deviation over the seeds. The
cost is the accuracy that is lost to garbage, and its difference from WAFL's, with a 95% interval of the mean, paired by
seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

import wafl
from benchmarks import options
from wafl.base.errors import TrainingWarning

METHODS = (wafl.WAFL(gamma=0.5), wafl.FedAvg(), wafl.ResilientWAFL(gamma=0.5, temperature=4.0))


def spoiled(clients: wafl.Federation, seed: int, share: float = 0.05) -> wafl.Federation:
    """Return the clients with this share of training examples replaced by bright noise with any label."""
    generator, train = torch.Generator().manual_seed(seed), clients.train
    rows = torch.randperm(len(train.y), generator=generator)[: round(share * len(train.y))]
    raw, y = train.raw[:].clone(), train.y.clone()
    raw[rows] = torch.randint(128, raw[rows].shape, generator=generator, dtype=raw.dtype)
    y[rows] = torch.randint(10, (len(rows),), generator=generator)
    return replace(clients, train=replace(train, raw=raw, y=y))


def with_garbage(method: wafl.Method, seed: int, rounds: int = 40) -> tuple[float, float]:
    """Return the accuracy without and with garbage among the training examples."""
    clients = wafl.load_dataset("digits").partition(num_clients=10, iid=True, preprocess="zscore", seed=seed)
    schedule: dict[str, Any] = {"rounds": rounds, "local_epochs": 2, "batch_size": 32, "learning_rate": 0.02}
    accuracies: list[float] = []
    for each in (clients, spoiled(clients, 1000 + seed)):
        run = wafl.fit(wafl.models.mlr(clients), each, method, seed=seed, **schedule)
        accuracies.append(100.0 * (wafl.evaluate(run, clients).accuracy or 0.0))
    return accuracies[0], accuracies[1]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95% interval of the mean."""
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def shown(values: Sequence[float]) -> str:
    """Format a mean and its standard deviation."""
    return f"{fmean(values):.1f} ± {stdev(values) if len(values) > 1 else 0.0:.1f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=40)
    given = options.read(parser, argv, seeds=[0], rounds=1)
    warnings.simplefilter("ignore", TrainingWarning)
    table = Table("method, with garbage", "without", "with 5% garbage", "cost", "less than WAFL")
    baseline: list[float] = []
    for method in METHODS:
        accuracies = [with_garbage(method, seed, given.rounds) for seed in given.seeds]
        costs = [before - after for before, after in accuracies]
        baseline = baseline or costs
        less = [one - other for one, other in zip(baseline, costs, strict=True)]
        cells = ([before for before, _ in accuracies], [after for _, after in accuracies], costs)
        compared = any(less) and len(less) > 1
        table.add_row(method.name, *map(shown, cells), "{:.1f} to {:.1f}".format(*interval(less)) if compared else "")
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
