"""Measure the cost of private records: the accuracy if each node adds noise in every local step.

    python -m research private-nodes [--smallest] [--data digits mnist] [--data-dir DIR] [--seeds 3]

FedAvg and WAFL with a linear model on 10 clients with equal shares of the data, all in every round, one local step per
round. The unit is an example: any one may become any other. Delta is 1e-5. The numbers of steps and the learning rates
were chosen among a few with another seed, at epsilon 4, for MNIST by the accuracy on its training examples. The noise
cannot be drawn again; seeds decide which client has which examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

import torch

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

DELTA, CLIENTS, CLIP_NORM, GAMMA = 1e-5, 10, 1.0, 5.0
ROWS = {"no privacy": None, "epsilon 8": 8.0, "epsilon 4": 4.0, "epsilon 1": 1.0}


@dataclass(frozen=True)
class Settings:
    """The settings of one data set: the number of steps, and the learning rate with clipping and without."""

    steps: int
    clipped_rate: float
    plain_rate: float


SETTINGS = {"digits": Settings(20, 4.0, 0.5), "mnist": Settings(15, 8.0, 0.5)}


def accuracy(clients: Federation, settings: Settings, objective: Objective | None, epsilon: float | None) -> float:
    """Train a linear model, with noise at every client if there is an epsilon; return its accuracy in percent."""
    rate = settings.plain_rate if epsilon is None else settings.clipped_rate
    schedule = Schedule(rounds=settings.steps, local_steps=1, batch_size=None, learning_rate=rate)
    task = make_task(mlr(clients), "cross_entropy", torch.device("cpu"))
    client, params = ClientTask(task, objective, schedule.local_work, clients.train), task.initial()
    units = {row: Units(row, torch.arange(int(size))) for row, size in enumerate(clients.train.num_examples)}
    moved = {} if objective is None else objective.scalars()
    for number in range(settings.steps):
        scalars, weights = {**schedule.scalars(number), **moved}, torch.ones(len(units), dtype=torch.float64)
        query = Query("train", number, 0, tuple(units), weights, params, scalars)
        if epsilon is None:
            (replies,) = Lanes(client).run([query])
        else:
            replies = private_replies(client, query, units, RecordPrivacy(epsilon, DELTA, CLIP_NORM, settings.steps))
        params = weighted_mean(weights, replies.params)
    right = task.outputs(params[None], clients.test.x[None])[0].argmax(1) == clients.test.y
    return 100.0 * float(right.double().mean())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--data", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="instead of the number chosen for each data set")
    given = options.read(parser, argv, data=["digits"], seeds=1, steps=1)
    columns = [(name, objective) for name in given.data for objective in (None, wasserstein(gamma=GAMMA))]
    heads = [f"{'WAFL' if objective else 'FedAvg'}, {name}" for name, objective in columns]
    print(f"| | {' | '.join(heads)} |")
    print(f"|{' --- |' * (len(columns) + 1)}")
    for row, epsilon in ROWS.items():
        cells = list[str]()
        for name, objective in columns:
            values = [
                accuracy(
                    load_dataset(name, given.data_dir).partition(
                        CLIENTS, iid=True, split="standard", preprocess="unit", seed=seed
                    ),
                    replace(SETTINGS[name], steps=given.steps or SETTINGS[name].steps),
                    objective,
                    epsilon,
                )
                for seed in range(given.seeds)
            ]
            cells.append(f"{mean(values):.1f} ± {stdev(values) if len(values) > 1 else 0.0:.1f}")
        print(f"| {row} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
