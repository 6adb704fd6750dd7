"""Small networks on a CPU, against a plain PyTorch loop that takes one client after another.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/small_networks.py [--smallest]

Work: clients with 32 examples each, all in every round, 2 local epochs of one batch; WAFL takes 5 inner steps. Both
sides see the same examples and end with the same parameters. They take turns within one process, and the ratio of their
least CPU seconds is printed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import wafl
from benchmarks import options, unequal

EXAMPLES = 32
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
        for method in unequal.METHODS:
            for count in given.clients:
                model, clients = make_work(name, count)
                ours, theirs, apart = unequal.duel(model, clients, method, given.rounds, given.repeats)
                seconds = (f"{theirs:.3f} s", f"{ours:.3f} s", f"{ours / theirs:.2f}")
                table.add_row(name, method.name, str(count), *seconds, f"{apart:.1e}")
    Console(width=120).print(table, f"torch {torch.__version__}, {torch.get_num_threads()} threads", sep="\n")


def make_work(name: str, count: int) -> tuple[nn.Module, wafl.Federation]:
    if name.startswith("CNN"):
        clients = unequal.make_clients([EXAMPLES] * count, NETWORKS[name])
        return wafl.models.cnn(clients), clients
    inputs, hidden = NETWORKS[name]
    return unequal.make_model(inputs, hidden), unequal.make_clients([EXAMPLES] * count, (inputs,))


if __name__ == "__main__":
    main()
