"""Choose the size of every method in ``wafl run``, with the same number of trials for each.

    python -m research tune-demo [--smallest]

The attack, the norm, and the schedule of the demo are fixed in ``src/wafl/config/demo.toml``; this script chooses the
rest. It spreads the demo's training examples over clients again, three times, so it never sees a test example or an
unseen client of the demo. A trial counts by the mean of its clean accuracy and its accuracy with all clients attacked,
on the test examples of these other partitions. The script prints the best values, which then go into that file.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import wafl
from benchmarks import options
from wafl.config.demo import demo_experiment
from wafl.config.plan import make_plan

TRIALS = 16
"""Trials per method: enough that neighboring sizes differ by less than seeds do."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--methods", nargs="*", default=list(grids()), help="by default all seven of the demo")
    given = options.read(parser, argv, partitions=1, rounds=1, methods=["FedAvg", "WAFL"])
    for name in given.methods:
        grid = grids()[name]
        values = [judged(name, grid, seed, given.rounds, given.smallest) for seed in range(1, given.partitions + 1)]
        print(f"{name}: {len(values[0])} trials, mean of clean and attacked accuracy on {len(values)} partitions")
        means = {setting: fmean(of[setting] for of in values) for setting in values[0]}
        for setting in sorted(means, key=means.__getitem__, reverse=True)[:3]:
            print(f"  {100.0 * means[setting]:.2f}% with {setting}", flush=True)


def grids() -> dict[str, dict[str, list[Any]]]:
    """Return, by method, its size, or two numbers, with ``TRIALS`` combinations from almost nothing to too much.

    FedAvg, AFL, and DRFA have no ball, so their size is the weight decay.
    """
    lengths, steps, decays = spaced(0.02, 0.4, TRIALS), [1e-4, 1e-3], spaced(1e-4, 0.1, TRIALS // 2)
    return {
        "WAFL": {"radius": lengths},
        "FedAvg": {"weight_decay": spaced(1e-5, 1e-1, TRIALS)},
        "FedPGM": {"epsilon": lengths},
        "FedFGSM": {"epsilon": lengths},
        "FedRobust": {"penalty": spaced(0.5, 50.0, TRIALS // 2), "step_size": [0.01, 0.1]},
        "AFL": {"weights_step": steps, "weight_decay": decays},
        "DRFA": {"weights_step": steps, "weight_decay": decays},
    }


def spaced(low: float, high: float, count: int) -> list[float]:
    """Return ``count`` numbers from ``low`` to ``high``, uniform in the logarithm, with two digits."""
    return [float(f"{low * (high / low) ** (index / (count - 1)):.2g}") for index in range(count)]


def judged(name: str, grid: dict[str, list[Any]], seed: int, rounds: int, smallest: bool) -> dict[str, float]:
    """Return the value of every trial of a method on one partition, by its setting in words."""
    plan = make_plan(demo_experiment(methods=[name], rounds=rounds, seeds=[seed]))
    clients, entry = repartitioned(seed), plan.entries[0]
    assert plan.attack is not None
    grid = {option: values[:2] for option, values in grid.items()} if smallest else grid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wafl.ConcavityWarning)  # large radii are among the trials
        runs = wafl.sweep(wafl.models.mlr(clients), clients, entry.method, grid, **entry.schedule, progress=False)
    result: dict[str, float] = {}
    for run in runs:
        setting = ", ".join(f"{option}={value}" for option, value in run.point.items())
        scores = [wafl.evaluate(run, clients), wafl.evaluate(run, clients, attack=plan.attack, attacked=1.0)]
        result[setting] = 0.0 if run.diverged else fmean(score.accuracy or 0.0 for score in scores)
    return result


def repartitioned(seed: int) -> wafl.Federation:
    """Return the demo's training examples, divided among the same number of clients by another seed."""
    demo = make_plan(demo_experiment(methods=["FedAvg"])).federation
    assert demo is not None
    data, train = wafl.load_dataset("digits"), demo.train
    data = replace(data, x_train=train.raw, y_train=train.y, x_test=train.raw[:0], y_test=train.y[:0])
    return data.partition(num_clients=demo.num_clients, labels_per_client=3, seed=seed)


if __name__ == "__main__":
    main()
