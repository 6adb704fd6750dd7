"""Networks on a CPU against a plain PyTorch loop, which computes one client after another.

    OMP_NUM_THREADS=1 python -m benchmarks.networks [--smallest] [--part unequal small convolutions lipschitz workers]

Both sides see the same examples and end with the same parameters. They take turns within one process, and the ratio of
their least CPU seconds is printed, which other work on the machine disturbs least.

``unequal``: clients of unequal sizes, a network of one hidden layer, all clients in every round, batch 64, 2 local
epochs; WAFL takes 5 inner steps. The ratio must not exceed 1.5. ``small``: small networks, clients with 32 examples
each. ``convolutions``: ``wafl.models.cnn`` with a few clients. *In turn* computes one client after another, and
*together* computes all at once; ``tasks/structure/sequence.py`` decides which of the two a training takes, by the
products per example. ``lipschitz``: ``wafl.models.lipschitz``, whose weights are rescaled in every step, against the
same network without rescaling, in place of the plain loop; with one local step per round, clients share the weights.
``workers``: the default CNN with ten clients, 5 local steps and batch 64, by one thread and by two that share the
clients; seconds of a clock, so run it on two idle cores.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import wafl
from benchmarks import options, speed
from benchmarks.contest import plain
from wafl.tasks.rescaling import make_plain
from wafl.tasks.structured import make_task

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
EXAMPLES = 32
NETWORKS: dict[str, tuple[int, ...]] = {
    "MLP, 64-32-10": (64, 32),
    "MLP, 784-200-10": (784, 200),
    "CNN, 8 x 8": (1, 8, 8),
    "CNN, 28 x 28": (1, 28, 28),
}
"""The inputs and hidden units of an MLP; the shape of the images of ``wafl.models.cnn``."""

Size = tuple[tuple[int, int, int], tuple[int, int], int, int]
"""The shape of an image, the channels of the two convolutions, the batch and the number of clients."""

SIZES: list[Size] = [
    ((1, 8, 8), (4, 8), 32, 20),
    ((1, 8, 8), (16, 32), 32, 10),
    ((1, 28, 28), (8, 16), 32, 5),
    ((1, 8, 8), (32, 64), 32, 1),
    ((1, 28, 28), (32, 64), 32, 1),
    ((3, 32, 32), (32, 64), 64, 1),
]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--divide", type=int, default=1, help="unequal: divide all sizes by this")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), help="small: which")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 5, 20], help="small: how many")
    parser.add_argument("--first", type=int, default=len(SIZES), help="convolutions: how many of the sizes")
    parser.add_argument("--width", type=int, default=64, help="lipschitz: channels of the first convolutions")
    parser.add_argument("--depth", type=int, default=3, help="lipschitz: convolutions at each size")
    parser.add_argument("--image", nargs=3, type=int, default=[3, 32, 32], help="lipschitz: the shape of an image")
    parser.add_argument("--device", default="cpu", help="lipschitz: cpu or cuda")
    small = {"networks": ["MLP, 64-32-10"], "clients": [2], "first": 1, "width": 4, "depth": 1, "image": [1, 8, 8]}
    given = options.read(parser, argv, rounds=1, repeats=1, divide=40, **small)
    for part in given.part:
        Console(width=120).print(PARTS[part](given))
    Console().print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


def unequal(given: argparse.Namespace) -> Table:
    table = Table("spread", "method", "sizes", "plain PyTorch", "wafl", "wafl / plain", "parameters apart")
    for name, sizes in SPREADS.items():
        for method in METHODS:
            few = [max(2, size // given.divide) for size in sizes]
            ours, theirs, apart = duel(make_model(), make_clients(few), method, given.rounds, given.repeats)
            shown = "/".join(map(str, few[:5])) + ("/..." if len(few) > 5 else "")
            seconds = (f"{theirs:.3f} s", f"{ours:.3f} s", f"{ours / theirs:.2f}")
            table.add_row(name, method.name, shown, *seconds, f"{apart:.1e}")
    return table


def small_networks(given: argparse.Namespace) -> Table:
    table = Table("network", "method", "clients", "plain PyTorch", "wafl", "wafl / plain", "parameters apart")
    for name in given.networks:
        for method in METHODS:
            for count in given.clients:
                model, clients = make_work(name, count)
                ours, theirs, apart = duel(model, clients, method, given.rounds, given.repeats)
                seconds = (f"{theirs:.3f} s", f"{ours:.3f} s", f"{ours / theirs:.2f}")
                table.add_row(name, method.name, str(count), *seconds, f"{apart:.1e}")
    return table


def convolutions(given: argparse.Namespace) -> Table:
    work = ("images", "channels", "batch", "clients", "products", "method")
    table = Table(*work, "in turn / plain", "together / plain", "parameters apart")
    for shape, channels, batch, count in SIZES[: given.first]:
        clients = make_clients([batch] * count, shape)
        model = wafl.models.cnn(clients, channels=channels)
        task = make_task(model)
        products = task.convolution_products(task.initial(), clients.train.of(0)[0][:1])
        size = (" x ".join(map(str, shape)), f"{channels[0]}, {channels[1]}", str(batch), str(count), f"{products:,}")
        for method in METHODS:
            ratios: list[str] = []
            apart = 0.0
            for most in (0, math.inf):  # more products than this are computed one client after another
                with mock.patch("wafl.tasks.fitness.BUSY", most):
                    ours, theirs, difference = duel(model, clients, method, given.rounds, given.repeats)
                ratios.append(f"{ours / theirs:.2f}")
                apart = max(apart, difference)
            table.add_row(*size, method.name, *ratios, f"{apart:.1e}")
    return table


def lipschitz(given: argparse.Namespace) -> Table:
    table = Table("method", "clients x examples", "local steps", "rescaled", "plain", "ratio")
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    for count, batch in ((2, 4),) if given.smallest else ((1, 500), (20, 25)):
        clients = make_clients([batch] * count, given.image)
        model = wafl.models.lipschitz(clients, width=given.width, depth=given.depth)
        sides = (model, make_plain(copy.deepcopy(model)))
        inner = wafl.WAFL(gamma=1000.0, steps=1 if given.smallest else 10, tolerance=0, bounds=None)
        for method in (wafl.FedAvg(), inner):
            for steps in (1, 2 if given.smallest else 8):
                ours, plain_network = (
                    round_of(side, clients, method, steps, given.rounds, given.device, clock) for side in sides
                )
                times = (f"{1e3 * ours / steps:.1f} ms", f"{1e3 * plain_network / steps:.1f} ms")
                table.add_row(method.name, f"{count} x {batch}", str(steps), *times, f"{ours / plain_network:.2f}")
    return table


def round_of(
    model: nn.Module,
    clients: wafl.Federation,
    method: wafl.Method,
    steps: int,
    rounds: int,
    device: str,
    clock: Callable[[], float],
) -> float:
    """Return the seconds of the fastest round of ``wafl.fit`` after the first."""
    ends: list[float] = []

    def end(_: wafl.callbacks.Moment) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        ends.append(clock())

    wafl.fit(
        model, clients, method, rounds=1 + rounds, local_steps=steps, batch_size=None, learning_rate=1e-3,
        loss="margin", device=device, callbacks=[end],
    )  # fmt: skip
    return min(later - earlier for earlier, later in pairwise(ends))


def workers(given: argparse.Namespace) -> Table:
    table = Table("method", "one thread", "two threads", "two / one")
    clients = make_clients([8 if given.smallest else 300] * 10, (1, 8, 8) if given.smallest else (1, 28, 28))
    for method in METHODS[:1] if given.smallest else METHODS:
        one, two = shared(clients, method, given.rounds, given.repeats)
        table.add_row(method.name, f"{one:.2f} s", f"{two:.2f} s", f"{two / one:.2f}")
    return table


def shared(clients: wafl.Federation, method: wafl.Method, rounds: int, repeats: int) -> tuple[float, float]:
    """Return the least seconds in which one thread and two train the default CNN, in turns."""
    model, taken = wafl.models.cnn(clients), {1: math.inf, 2: math.inf}
    for _ in range(repeats):
        for count in taken:
            began = time.perf_counter()
            wafl.fit(model, clients, method, rounds=rounds, local_steps=5, batch_size=64, workers=count)
            taken[count] = min(taken[count], time.perf_counter() - began)
    return taken[1], taken[2]


PARTS: dict[str, Callable[[argparse.Namespace], Table]] = {
    "unequal": unequal,
    "small": small_networks,
    "convolutions": convolutions,
    "lipschitz": lipschitz,
    "workers": workers,
}


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
    """Return the least CPU seconds of both sides, and the largest difference between their parameters."""
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


def make_work(name: str, count: int) -> tuple[nn.Module, wafl.Federation]:
    if name.startswith("CNN"):
        clients = make_clients([EXAMPLES] * count, NETWORKS[name])
        return wafl.models.cnn(clients), clients
    inputs, hidden = NETWORKS[name]
    return make_model(inputs, hidden), make_clients([EXAMPLES] * count, (inputs,))


if __name__ == "__main__":
    main()
