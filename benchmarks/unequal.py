"""Clients of unequal sizes against a plain PyTorch loop that takes one client after another.

    .venv/bin/python benchmarks/unequal.py [--smallest]

Work: a network of one hidden layer, all clients in every round, batch 64, 2 local epochs; WAFL takes 5 inner steps.
Both sides see the same examples and end with the same parameters. They take turns within one process, and the ratio of
their least CPU seconds is printed, which other work on the machine disturbs least. It must not exceed 1.5.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import wafl
from benchmarks import options, speed
from benchmarks.contest import plain

FEATURES, CLASSES, HIDDEN = 784, 10, 200
RATE, STEPS, GAMMA = 0.01, 5, 10.0
METHODS = (wafl.FedAvg(), wafl.WAFL(gamma=GAMMA, steps=STEPS, tolerance=0))
SPREADS = {
    "equal": [500] * 5,
    "a tenth each": [2000, 500, 100, 30, 8],
    "one large": [2600, *[8] * 4],
    "all small": [3, 5, 8, 13, 21, 34] * 4,
    "long tail": [max(4, round(4000 / rank)) for rank in range(1, 21)],
    "just past a batch": [65, 129, 193, 257, 321],
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--divide", type=int, default=1, help="divide all sizes by this")
    given = options.read(parser, argv, rounds=1, repeats=1, divide=40)
    table = Table("spread", "method", "sizes", "plain PyTorch", "wafl", "wafl / plain", "parameters apart")
    for name, sizes in SPREADS.items():
        for method in METHODS:
            few = [max(2, size // given.divide) for size in sizes]
            ours, theirs, apart = duel(make_model(), make_clients(few), method, given.rounds, given.repeats)
            shown = "/".join(map(str, few[:5])) + ("/..." if len(few) > 5 else "")
            table.add_row(
                name, method.name, shown, f"{theirs:.3f} s", f"{ours:.3f} s", f"{ours / theirs:.2f}", f"{apart:.1e}"
            )
    Console(width=120).print(table, f"torch {torch.__version__}, {torch.get_num_threads()} threads", sep="\n")


def make_clients(sizes: Sequence[int], shape: Sequence[int] = (FEATURES,)) -> wafl.Federation:
    """Gaussian classes with centers far enough apart to learn."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(CLASSES, *shape, generator=generator)
    pairs: list[tuple[Tensor, Tensor]] = []
    for size in sizes:
        y = torch.randint(CLASSES, (size,), generator=generator)
        pairs.append((0.2 * centers[y] + torch.randn(size, *shape, generator=generator), y))
    return wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=CLASSES)


def make_model(inputs: int = FEATURES, hidden: int = HIDDEN) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))


def duel(
    model: nn.Module, clients: wafl.Federation, method: wafl.Method, rounds: int, repeats: int
) -> tuple[float, float, float]:
    """The least CPU seconds of both sides on the same work, and the largest difference between their parameters."""
    cohorts = [list(range(clients.num_clients))] * rounds
    rows = speed.batches_of(clients, cohorts)
    shards = [clients.train.of(client) for client in range(clients.num_clients)]
    gamma = GAMMA if method.objective is not None else None
    schedule: dict[str, Any] = {**speed.SCHEDULE, "cohort": None, "learning_rate": RATE}
    ours, theirs, apart = speed.in_turn(
        method.name,
        lambda: wafl.fit(model, clients, method, rounds=rounds, **schedule),
        lambda: plain.train(model, shards, cohorts, rows, RATE, gamma, STEPS),
        repeats,
        time.process_time,
    )
    return min(ours), min(theirs), apart


if __name__ == "__main__":
    main()
