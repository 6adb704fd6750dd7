"""Choose the hyperparameters of ``wafl run``: the same care for every method.

    .venv/bin/python benchmarks/tune_demo.py [--smallest]

Each method gets three learning rates times the values of its own knob, on partitions (seeds 1 to 3) that the demo
does not show (seed 0). The best has the highest accuracy, averaged over partitions and over 0, 20, 40, 60 and 80%
attacked clients. The printed best go into ``wafl.runs.demo``.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

import options
import wafl
from wafl.runs.demo import SHARES, schedule_of

GRIDS: list[tuple[wafl.Method, dict[str, list[float]]]] = [
    (wafl.WAFL(norm=math.inf), {"gamma": [2.5, 5.0, 10.0, 20.0, 40.0]}),
    (wafl.WAFL(norm=2), {"gamma": [0.25, 0.5, 1.0, 2.0, 4.0]}),
    (wafl.FedAvg(), {}),
    (wafl.FedPGM(), {"epsilon": [0.05, 0.1, 0.15, 0.2, 0.25]}),
    (wafl.FedFGSM(), {"epsilon": [0.05, 0.1, 0.15, 0.2, 0.25]}),
    (wafl.FedRobust(), {"penalty": [0.3, 1.0, 3.0, 10.0, 30.0]}),
    (wafl.AFL(), {"weights_step": [0.001, 0.003, 0.01, 0.03, 0.1]}),
    (wafl.DRFA(), {"weights_step": [0.001, 0.003, 0.01, 0.03, 0.1]}),
]

Point = tuple[int, tuple[tuple[str, float], ...]]


@dataclass(frozen=True)
class Job:
    """One method (by its place in ``GRIDS``) and learning rate on one partition, over the first values of its knob."""

    place: int
    rate: float
    partition: int
    rounds: int
    values: int


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.3, 1.0], help="learning rates")
    parser.add_argument("--values", type=int, default=5, help="how many values of each method's own knob")
    given = options.read(parser, argv, processes=1, partitions=1, rounds=1, rates=[0.1], values=1)
    jobs = [
        Job(place, rate, partition, given.rounds, given.values)
        for partition in range(1, given.partitions + 1)
        for place in range(len(GRIDS))
        for rate in given.rates
    ]
    scores: dict[Point, list[float]] = defaultdict(list)
    for found in run_all(jobs, given.processes):
        for point, accuracy in found.items():
            scores[point].append(accuracy)
    for place, (method, _) in enumerate(GRIDS):
        ranked = sorted(((statistics.fmean(v), p) for (at, p), v in scores.items() if at == place), reverse=True)
        for accuracy, point in ranked[:3]:
            norm = (
                f" norm={method.adversary.norm}" if isinstance(method.adversary, wafl.adversaries.Wasserstein) else ""
            )
            print(f"{method.name}{norm}: {100 * accuracy:.2f}% with {dict(point)}")


def run_all(jobs: Sequence[Job], processes: int) -> list[dict[Point, float]]:
    if processes == 1:
        return [score(job) for job in jobs]
    with ProcessPoolExecutor(processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(score, jobs))


def score(job: Job) -> dict[Point, float]:
    """Accuracy of each point, averaged over the shares of attacked clients."""
    clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=job.partition)
    attack = wafl.PGD(epsilon=0.15, step_size=0.01, steps=40, bounds=(0.0, 1.0))
    method, grid = GRIDS[job.place]
    found: dict[Point, float] = {}
    schedule: dict[str, Any] = {**schedule_of(method.name, job.rounds, 10), "learning_rate": job.rate}
    for name, values in (grid or {"seed": [0]}).items():
        for value in values[: job.values]:  # one at a time, so that a diverging value costs only itself
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", wafl.ConcavityWarning)
                try:
                    (run,) = wafl.sweep(wafl.models.mlr(clients), clients, method, {name: [value]}, **schedule)
                except wafl.DivergedError:
                    accuracy = 0.0
                else:
                    scores = [
                        wafl.evaluate(run, clients, attack=attack, attacked=share, seed=job.partition)
                        for share in (0.0, *SHARES)
                    ]
                    accuracy = statistics.fmean(score.accuracy or 0.0 for score in scores)
            found[job.place, ((name, value), ("learning_rate", job.rate))] = accuracy
    return found


if __name__ == "__main__":
    main()
