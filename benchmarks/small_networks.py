"""Small networks on a CPU, against a plain PyTorch loop that takes one client after another.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/small_networks.py [--smallest]

Work: clients with 32 examples each, all in every round, 2 local epochs of one batch; WAFL takes 5 inner steps. Both
sides see the same examples and end with the same parameters. They take turns within one process, and the ratio of their
least CPU seconds is printed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import options
import speed
import wafl
from wafl.bench import sequential

CLASSES, EXAMPLES = 10, 32
RATE, STEPS, GAMMA = 0.01, 5, 10.0
NETWORKS: dict[str, tuple[int, ...]] = {
    "MLP, 64-32-10": (64, 32),
    "MLP, 784-200-10": (784, 200),
    "CNN, 8 x 8": (1, 8, 8),
    "CNN, 28 x 28": (1, 28, 28),
}
"""The inputs and hidden units of an MLP; the shape of the images of ``wafl.models.cnn``."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 5, 20])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    given = options.read(parser, argv, networks=["MLP, 64-32-10"], clients=[2], rounds=1, repeats=1)
    table = Table("network", "method", "clients", "plain PyTorch", "wafl", "wafl / plain", "parameters apart")
    for name in given.networks:
        for method in (wafl.FedAvg(), wafl.WAFL(gamma=GAMMA, steps=STEPS, tolerance=0)):
            for count in given.clients:
                ours, theirs, apart = duel(name, count, method, given.rounds, given.repeats)
                seconds = (f"{theirs:.3f} s", f"{ours:.3f} s", f"{ours / theirs:.2f}")
                table.add_row(name, method.name, str(count), *seconds, f"{apart:.1e}")
    Console(width=120).print(table, f"torch {torch.__version__}, {torch.get_num_threads()} threads", sep="\n")


def make_clients(shape: tuple[int, ...], count: int) -> wafl.Federation:
    """Gaussian classes with centers far enough apart to learn."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(CLASSES, *shape, generator=generator)
    pairs: list[tuple[Tensor, Tensor]] = []
    for _ in range(count):
        y = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
        pairs.append((0.2 * centers[y] + torch.randn(EXAMPLES, *shape, generator=generator), y))
    return wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=CLASSES)


def make_work(name: str, count: int) -> tuple[nn.Module, wafl.Federation]:
    if name.startswith("CNN"):
        clients = make_clients(NETWORKS[name], count)
        return wafl.models.cnn(clients), clients
    inputs, hidden = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))
    return model, make_clients((inputs,), count)


def duel(name: str, count: int, method: wafl.Method, rounds: int, repeats: int) -> tuple[float, float, float]:
    """The least CPU seconds of both sides on the same work, and the largest difference between their parameters."""
    (model, clients), cohorts = make_work(name, count), [list(range(count))] * rounds
    rows = speed.batches_of(clients, cohorts)
    shards = [clients.train.of(client) for client in range(count)]
    gamma = GAMMA if method.adversary is not None else None
    schedule: dict[str, Any] = {**speed.SCHEDULE, "cohort": None, "learning_rate": RATE}
    ours, theirs, apart = speed.in_turn(
        method.name,
        lambda: wafl.fit(model, clients, method, rounds=rounds, **schedule),
        lambda: sequential.train(model, shards, cohorts, rows, RATE, gamma, STEPS),
        repeats,
        time.process_time,
    )
    return min(ours), min(theirs), apart


if __name__ == "__main__":
    main()
