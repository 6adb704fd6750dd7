"""What privacy of records costs: accuracy where each node adds noise in every local step.

    python -m research private-nodes [--smallest] [--data digits mnist] [--seeds 5]

FedAvg and WAFL with a linear model on 10 clients with equal shares of the data, all in every round, one local step per
round. The unit is an example: any one may become any other. Delta is 1e-5. Steps and learning rate were chosen at
epsilon 4 with another seed. The noise cannot be drawn again; seeds decide who has which examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import torch
from torch import Tensor

from benchmarks import options
from wafl.data import load_dataset
from wafl.data.federation import Federation
from wafl.models import mlr
from wafl.objectives import Objective, wasserstein
from wafl.parts.messages import Query, weighted_mean
from wafl.parts.schedule import Schedule
from wafl.tasks.structured import make_task
from wafl.train.client_task import ClientTask
from wafl.train.lanes.lanes import Lanes
from wafl.train.privacy.records import RecordPrivacy, Units, private_replies

DELTA, CLIENTS = 1e-5, 10
CLIPPING_ONLY = 1e7
"""An epsilon with which the noise is too small to matter."""
ROWS = {"no privacy": None, "clipping only": CLIPPING_ONLY, "epsilon 8": 8.0, "epsilon 4": 4.0, "epsilon 1": 1.0}


@dataclass(frozen=True)
class Settings:
    """How long one data set is trained, and how far gradients are clipped."""

    steps: int
    learning_rate: float
    clip_norm: float
    gamma: float


SETTINGS = {"digits": Settings(10, 4.0, 0.5, 5.0), "mnist": Settings(40, 2.0, 0.5, 5.0)}


def accuracy(clients: Federation, settings: Settings, objective: Objective | None, epsilon: float | None) -> float:
    """Train a linear model, with noise at every client if there is an epsilon, and test it on all clients' examples."""
    task = make_task(mlr(clients), "cross_entropy", torch.device("cpu"))
    schedule = Schedule(rounds=settings.steps, local_steps=1, batch_size=None, learning_rate=settings.learning_rate)
    client, params = ClientTask(task, objective, schedule.local_work, clients.train), task.initial()
    everyone = tuple(range(clients.num_clients))
    units = {row: Units(row, torch.arange(int(size))) for row, size in enumerate(clients.train.num_examples)}
    weights = torch.ones(len(everyone), dtype=torch.float64)
    moved = {} if objective is None else objective.scalars()
    for number in range(settings.steps):
        query = Query("train", number, 0, everyone, weights, params, {**schedule.scalars(number), **moved})
        if epsilon is None:
            (replies,) = Lanes(client).run([query])
        else:
            privacy = RecordPrivacy(epsilon, DELTA, settings.clip_norm, settings.steps)
            replies = private_replies(client, query, units, privacy)
        params = weighted_mean(weights, replies.params)
    return 100.0 * float(_right(task.outputs(params[None], clients.test.x[None])[0], clients.test.y))


def _right(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.argmax(1) == y).double().mean()


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=["digits", "mnist"], choices=list(SETTINGS))
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    for name in ("steps", "learning-rate", "clip-norm", "gamma"):
        parser.add_argument(f"--{name}", type=float, default=None)
    given = options.read(parser, argv, data=["digits"], seeds=2, steps=1, rows=["epsilon 4"])
    chosen = {}
    for name in given.data:
        s = SETTINGS[name]
        chosen[name] = Settings(
            int(given.steps or s.steps),
            given.learning_rate or s.learning_rate,
            given.clip_norm or s.clip_norm,
            given.gamma or s.gamma,
        )
    print(f"| | {' | '.join(f'{method}, {name}' for name in chosen for method in ('FedAvg', 'WAFL'))} |")
    print("|" + " --- |" * (1 + 2 * len(chosen)))
    for row in given.rows:
        cells = list[str]()
        for name, settings in chosen.items():
            for objective in (None, wasserstein(gamma=settings.gamma)):
                values = [
                    accuracy(
                        load_dataset(name, given.data_dir).partition(
                            CLIENTS, iid=True, split="standard", preprocess="unit", seed=seed
                        ),
                        settings,
                        objective,
                        ROWS[row],
                    )
                    for seed in range(given.first_seed, given.first_seed + given.seeds)
                ]
                cells.append(f"{mean(values):.1f} ± {stdev(values) if len(values) > 1 else 0.0:.1f}")
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
