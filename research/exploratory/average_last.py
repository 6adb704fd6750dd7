"""Compare the mean of the models of the last half of the rounds with the last model, on held-out training data.

    python -m research average-last [--smallest] [--data demo mnist cifar10] [--device cuda]
        [--methods wafl fedavg] [--seeds 4]

Work: the methods of ``wafl run`` on digits, and the methods of the paper's main figure on MNIST and CIFAR-10 in the
fair protocol, with the settings that were chosen for their last models, and with three times their learning rates. They
train on partition 1, which no published number has, without a fifth of every client's training examples. That fifth is
the judge: the accuracy, averaged over shares of attacked clients, as in ``wafl tune``. No test example is used.
The table has the means over the seeds, and the gain with its deviation, paired by seed.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import wafl
from benchmarks import options
from wafl.config.demo import demo_experiment
from wafl.config.experiment import Experiment
from wafl.config.plan import make_plan
from wafl.config.read import parse_experiment
from wafl.results.run import with_params
from wafl.tuning.judging import Goal, hold_out

CHOSEN = str(Path(__file__).parents[1] / "docs" / "reproduction" / "fig-attacked-share-{}-fair.json")
FASTER = (1.0, 3.0)
"""The factors of the chosen learning rate: a mean tolerates more noise than a last model."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--data", nargs="*", choices=EXPERIMENTS, default=[*EXPERIMENTS])
    parser.add_argument("--methods", nargs="*", help="their names; by default all")
    parser.add_argument("--rounds", type=int, help="by default the experiment's rounds")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    given = options.read(parser, argv, data=["demo"], rounds=2, seeds=1)
    warnings.simplefilter("ignore")
    titles = [part for faster in FASTER for part in (f"rate x {faster:g}: last", "averaged", "gain")]
    table = Table("data", "method", *titles)
    for data in given.data:
        plan = make_plan(EXPERIMENTS[data](given.rounds))
        assert plan.federation is not None
        split = hold_out(plan.federation, "examples", 0.2, 0)
        shares = (0.0, *plan.experiment.evaluation.attacked)
        goal = Goal(split, attack=plan.attack, attacked=shares, device=torch.device(given.device))
        for entry in plan.entries:
            if given.methods and entry.name not in given.methods:
                continue
            rate = entry.schedule["learning_rate"]
            grid: dict[str, Any] = {"learning_rate": [faster * rate for faster in FASTER]}
            grid["seed"] = range(10, 10 + given.seeds)
            schedule = {name: value for name, value in entry.schedule.items() if name not in grid}
            runs = wafl.sweep(
                plan.model, split.train, entry.method, grid, average_last=0.5, device=given.device, **schedule
            )
            pairs = [(judged(goal, last_of(run)), judged(goal, run)) for run in runs]
            groups = [pairs[start : start + given.seeds] for start in range(0, len(pairs), given.seeds)]
            table.add_row(data, entry.title, *(cell for each in groups for cell in shown(each)))
            print(data, entry.title, *(cell for each in groups for cell in shown(each)), flush=True)
    Console(width=140).print(table)


def last_of(run: wafl.Run) -> wafl.Run:
    """Return the run without averaging."""
    return replace(run, params=run.last_params, module=with_params(run.module, run.last_params), last=None)


def judged(goal: Goal, run: wafl.Run) -> float:
    """Return the goal's percentage; a model that diverged has 0."""
    try:
        return 100 * goal.value(run)
    except ValueError:  # outputs that are no numbers are refused
        return 0.0


def shown(pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Return the cells of a row: both means, and the gain."""
    gains = [averaged - last for last, averaged in pairs]
    spread = f" ± {stdev(gains):.1f}" if len(gains) > 1 else ""
    return [*(f"{fmean(column):.1f}" for column in zip(*pairs, strict=True)), f"{fmean(gains):+.1f}{spread}"]


def demo(rounds: int | None) -> Experiment:
    """Return the demo with sampled cohorts and two local epochs, since averaging is for noisy training."""
    return demo_experiment(seeds=[1], rounds=rounds or 100, cohort=10, local_epochs=2, batch_size=64)


def mnist(rounds: int | None) -> Experiment:
    """Return the fair protocol of ``experiments/fig-attacked-share.toml``, with the settings that its trials chose."""
    chosen = chosen_for("mnist")
    common = {"cohort": 10, "local_steps": 5, "batch_size": 64}
    every = {"cohort": 100, "local_steps": 1, "batch_size": 64, "rounds": 100, "client_weights": "uniform"}
    methods: list[dict[str, Any]] = [
        {"method": "WAFL", "norm": "inf", "steps": 4, **common, **chosen["wafl"]},
        {"method": "WAFL", "name": "wafl-l2", **common, **chosen["wafl-l2"]},
        {"method": "WAFL", "name": "wafl-every", "norm": "inf", "steps": 4, **every, **chosen["wafl-every"]},
        {"method": "FedAvg", **common, **chosen["fedavg"]},
        {"method": "FedPGM", "steps": 10, **common, **chosen["fedpgm"]},
        {"method": "FedFGSM", **common, **chosen["fedfgsm"]},
        {"method": "DRFA", **common, **chosen["drfa"]},
        {"method": "AFL", "local_steps": 1, "batch_size": 64, "rounds": 100, **chosen["afl"]},
    ]
    content = {
        "data": {"dataset": "mnist", "num_clients": 100, "labels_per_client": 2, "sizes": [700.0, 313.4], "seed": 1},
        "schedule": {"rounds": 200},
        "methods": shortened(methods, rounds),
        "attack": {"epsilon": 0.1, "steps": 10, "step_size": 0.025},
        "evaluation": {"attacked": [0.4, 0.8]},
    }
    return parse_experiment(content, "average_last")


def cifar10(rounds: int | None) -> Experiment:
    """Return the same with the convolutional network, which needs a GPU."""
    chosen = chosen_for("cifar10")
    common = {"cohort": 10, "local_steps": 10, "batch_size": 64}
    methods: list[dict[str, Any]] = [
        {"method": "WAFL", "steps": 10, **common, **chosen["wafl"]},
        {"method": "WAFL", "name": "wafl-l2", "steps": 10, **common, **chosen["wafl-l2"]},
        {"method": "FedAvg", **common, **chosen["fedavg"]},
        {"method": "FedPGM", "steps": 10, **common, **chosen["fedpgm"]},
        {"method": "FedFGSM", **common, **chosen["fedfgsm"]},
        {"method": "DRFA", **common, **chosen["drfa"]},
    ]
    content = {
        "data": {
            "dataset": "cifar10",
            "num_clients": 20,
            "labels_per_client": 3,
            "sizes": [2154.9, 593.8],
            "preprocess": "symmetric",
            "seed": 1,
        },
        "model": {"kind": "cnn"},
        "schedule": {"rounds": 200, "precision": "bfloat16"},
        "methods": shortened(methods, rounds),
        "attack": {"epsilon": 0.0627, "steps": 10, "step_size": 0.0157},
        "evaluation": {"attacked": [0.4, 0.8]},
    }
    return parse_experiment(content, "average_last")


def chosen_for(data: str) -> dict[str, dict[str, Any]]:
    """Return the chosen setting of each method."""
    return {name: each["setting"] for name, each in json.loads(Path(CHOSEN.format(data)).read_text())["chosen"].items()}


def shortened(methods: list[dict[str, Any]], rounds: int | None) -> list[dict[str, Any]]:
    """Return the methods with this number of rounds, if it is given."""
    return methods if rounds is None else [{**method, "rounds": rounds} for method in methods]


EXPERIMENTS = {"demo": demo, "mnist": mnist, "cifar10": cifar10}


if __name__ == "__main__":
    main()
