"""Choose the hyperparameters of ``wafl run``: the same care for every method.

    .venv/bin/python benchmarks/tune_demo.py

Each method gets three learning rates times the values of its own knob, on partitions (seeds 1 to 3) that the demo
does not show (seed 0). The best has the highest accuracy, averaged over partitions and over 0, 20, 40, 60 and 80%
attacked clients. The printed best go into ``wafl.runs.demo``.
"""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

import wafl
from wafl.runs.demo import SHARES, schedule_of

RATES = [0.1, 0.3, 1.0]
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

Point = tuple[int, tuple[tuple[str, Any], ...]]


def main() -> None:
    scores: dict[Point, list[float]] = defaultdict(list)
    with ProcessPoolExecutor(int(sys.argv[1]) if len(sys.argv) > 1 else 2) as pool:
        jobs = [(place, rate, partition) for partition in (1, 2, 3) for place in range(len(GRIDS)) for rate in RATES]
        for found in pool.map(score, jobs):
            for point, accuracy in found.items():
                scores[point].append(accuracy)
    for place, (method, _) in enumerate(GRIDS):
        ranked = sorted(((statistics.fmean(v), p) for (at, p), v in scores.items() if at == place), reverse=True)
        for accuracy, point in ranked[:3]:
            norm = (
                f" norm={method.adversary.norm}" if isinstance(method.adversary, wafl.adversaries.Wasserstein) else ""
            )
            print(f"{method.name}{norm}: {100 * accuracy:.2f}% with {dict(point)}")


def score(job: tuple[int, float, int]) -> dict[Point, float]:
    place, rate, partition = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", wafl.ConcavityWarning)
    clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=partition)
    attack = wafl.PGD(epsilon=0.15, step_size=0.01, steps=40, bounds=(0.0, 1.0))
    method, grid = GRIDS[place]
    found: dict[Point, float] = {}
    schedule = {**schedule_of(method.name, 100, 10), "learning_rate": rate}
    for name, values in (grid or {"seed": [0]}).items():
        for value in values:  # one at a time, so that a diverging value costs only itself
            try:
                (run,) = wafl.sweep(wafl.models.mlr(clients), clients, method, {name: [value]}, **schedule)
            except wafl.DivergedError:
                accuracy = 0.0
            else:
                scores = [
                    wafl.evaluate(run, clients, attack=attack, attacked=share, seed=partition)
                    for share in (0.0, *SHARES)
                ]
                accuracy = statistics.fmean(score.accuracy or 0.0 for score in scores)
            found[place, ((name, value), ("learning_rate", rate))] = accuracy
    return found


if __name__ == "__main__":
    main()
