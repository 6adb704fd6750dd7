"""Compare training by radius with fixed gammas: the achieved radius, and the accuracy.

    python -m research radius [--smallest] [--data digits mnist] [--models mlr cnn] [--device cuda]

Every radius is trained once with ``radius=`` and compared with runs of fixed gammas: around the gamma that it found,
and on a ladder between all of those. "achieved / target" is the mean over the last quarter of the rounds. The best
fixed gamma is the one with the highest accuracy among those with such a ball: their achieved radius is between 95% and
150% of the target. If no fixed gamma reaches the target, the table has the largest radius that one reaches. Pixels are
z-scored.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import wafl
from benchmarks import options

NORMS = {"1": 1.0, "2": 2.0, "inf": math.inf}
WORK: dict[str, dict[str, Any]] = {
    "digits": {"clients": 20, "labels": 3, "local_steps": 5, "batch_size": 32},
    "mnist": {"clients": 100, "labels": 2, "local_steps": 10, "batch_size": 64},
}
RATES = {"mlr": 0.02, "cnn": 0.05}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--data", nargs="+", choices=list(WORK), default=["digits"])
    parser.add_argument("--models", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--norms", nargs="+", choices=list(NORMS), default=list(NORMS))
    parser.add_argument("--radii", nargs="+", type=float, default=[0.01, 0.1, 1.0, 3.0, 6.0])
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument(
        "--around", nargs="+", type=float, default=[0.5, 0.8, 1.25, 2.0], help="fixed gammas, in parts of the one found"
    )
    parser.add_argument("--rung", type=float, default=2.0, help="the ratio of two fixed gammas on the ladder")
    parser.add_argument("--channels", nargs=2, type=int, default=[8, 16], help="of the cnn")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default=os.environ.get("WAFL_DATA"))
    given = options.read(parser, argv, rounds=2, radii=[0.1], norms=["2"], models=["mlr"])
    warnings.simplefilter("ignore", wafl.ConcavityWarning)
    began = time.perf_counter()
    table = Table("data", "model", "norm", "radius", "achieved / target", "largest", "accuracy", "best fixed gamma's")
    for data in given.data:
        work = dict(WORK[data])
        dataset = wafl.load_dataset(data, data_dir=given.data_dir)
        clients = dataset.partition(
            num_clients=work.pop("clients"), labels_per_client=work.pop("labels"), preprocess="zscore", seed=0
        )
        for model in given.models:
            schedule = {**work, "rounds": given.rounds, "cohort": given.cohort, "device": given.device}
            schedule |= {"learning_rate": RATES[model]}
            for norm in given.norms:
                torch.manual_seed(0)
                channels = (given.channels[0], given.channels[1])
                made = wafl.models.mlr(clients) if model == "mlr" else wafl.models.cnn(clients, channels=channels)
                for row in compare(made, clients, NORMS[norm], given, schedule):
                    table.add_row(data, model, norm, *row)
                table.add_section()
    Console(width=120).print(table, f"{given.rounds} rounds, {time.perf_counter() - began:.0f} s", sep="\n")


def compare(
    model: torch.nn.Module,
    clients: wafl.Federation,
    norm: float,
    given: argparse.Namespace,
    schedule: dict[str, Any],
) -> list[tuple[str, ...]]:
    """Return one row per radius."""
    radii: list[float] = given.radii
    runs = wafl.sweep(model, clients, wafl.WAFL(radius=1.0, norm=norm), {"radius": radii}, **schedule)
    around = {part * gamma for run in runs for gamma in [found_gamma(run)] for part in given.around}
    rungs = math.ceil(math.log(max(around) / min(around), given.rung))
    gammas = sorted(around | {min(around) * given.rung**rung for rung in range(rungs)})
    try:
        fixed = wafl.sweep(model, clients, wafl.WAFL(gamma=1.0, norm=norm), {"gamma": gammas}, **schedule)
    except wafl.DivergedError:
        fixed = []
    fixed = [run for run in fixed if run.diverged is None]
    rows: list[tuple[str, ...]] = []
    for radius, run in zip(radii, runs, strict=True):
        rivals = [accuracy(other, clients) for other in fixed if 0.95 <= achieved(other) / radius <= 1.5]
        largest = max(record.achieved_radius or 0.0 for record in run.history)
        rows.append(
            (
                f"{radius:g}",
                f"{achieved(run) / radius:.3f}",
                f"{largest / radius:.2f}",
                f"{accuracy(run, clients):.1f}",
                f"{max(rivals):.1f}" if rivals else f"none: at most {max(map(achieved, fixed), default=0.0):.2g}",
            )
        )
    return rows


def achieved(run: wafl.Run) -> float:
    """Return the mean achieved radius of the last quarter of the rounds."""
    return fmean(record.achieved_radius or 0.0 for record in last_rounds(run))


def found_gamma(run: wafl.Run) -> float:
    """Return the settled gamma: its geometric mean in the last quarter of the rounds."""
    return math.exp(fmean(math.log(record.gamma or 1.0) for record in last_rounds(run)))


def last_rounds(run: wafl.Run) -> list[Any]:
    """Return the last quarter of the rounds."""
    return run.history[-max(len(run.history) // 4, 1) :]


def accuracy(run: wafl.Run, clients: wafl.Federation) -> float:
    """Return the accuracy on the clients' test examples, in percent."""
    return 100.0 * (wafl.evaluate(run, clients).accuracy or 0.0)


if __name__ == "__main__":
    main()
