"""Networks on a CPU against a plain PyTorch loop, which computes one client after another.

    OMP_NUM_THREADS=1 python -m benchmarks.networks [--smallest] [--part unequal small convolutions]

Both sides see the same examples and end with the same parameters. They take turns within one process, and the ratio of
their least CPU seconds is printed, which other work on the machine disturbs least.

``unequal``: clients of unequal sizes, a network of one hidden layer, all clients in every round, batch 64, 2 local
epochs; WAFL takes 5 inner steps. The ratio must not exceed 1.5. ``small``: small networks, clients with 32 examples
each. ``convolutions``: gradients of ``wafl.models.cnn`` for a few clients, in the parameters, with the update that
follows, and in the inputs. *In turn* computes one client after another, and *together* computes all with ``vmap``;
``tasks/structure/sequence.py`` decides which of the two a training takes, by the products per example.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import wafl
from benchmarks import options, speed
from benchmarks.contest import plain
from wafl.tasks.layout import Layout
from wafl.tasks.losses import CrossEntropy
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task, Traits

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
    small = {"networks": ["MLP, 64-32-10"], "clients": [2], "first": 1}
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
    table = Table(
        "images", "channels", "batch", "clients", "products", "gradient in", "in turn", "together", title="ratio"
    )
    for shape, channels, batch, lanes in SIZES[: given.first]:
        clients = make_clients([batch] * 2, shape)
        model = wafl.models.cnn(clients, channels=channels)
        task = make_task(model)
        products = task.convolution_products(task.initial(), clients.train.of(0)[0][:1])
        work = (" x ".join(map(str, shape)), f"{channels[0]}, {channels[1]}", str(batch), str(lanes), f"{products:,}")
        for what, sides in sides_of(model, *clients.train.of(0), lanes).items():
            plainly, ours, together = least(sides, given.repeats)
            table.add_row(*work, what, f"{ours / plainly:.2f}", f"{together / plainly:.2f}")
    return table


PARTS: dict[str, Callable[[argparse.Namespace], Table]] = {
    "unequal": unequal,
    "small": small_networks,
    "convolutions": convolutions,
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


def make_work(name: str, count: int) -> tuple[nn.Module, wafl.Federation]:
    if name.startswith("CNN"):
        clients = make_clients([EXAMPLES] * count, NETWORKS[name])
        return wafl.models.cnn(clients), clients
    inputs, hidden = NETWORKS[name]
    return make_model(inputs, hidden), make_clients([EXAMPLES] * count, (inputs,))


def sides_of(model: nn.Module, x: Tensor, y: Tensor, lanes: int) -> dict[str, list[Callable[[], object]]]:
    """By what the gradient is in: plain PyTorch, wafl in turn, and wafl together."""
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.01)
    alone, together = make_task(model), Task(copy.deepcopy(model), CrossEntropy(), Layout.of(model))
    alone.traits = Traits(busy=True)
    params = alone.initial().repeat(lanes, 1)
    inputs, labels = x.repeat(lanes, *(1,) * x.ndim), y.repeat(lanes, 1)
    share, rate = torch.full(labels.shape, 1 / len(y)), torch.full((lanes, 1), 0.01)

    def plain_step() -> None:
        for _ in range(lanes):
            optimizer.zero_grad()
            functional.cross_entropy(local(x), y).backward()
            optimizer.step()

    def plain_inputs() -> None:
        for _ in range(lanes):
            moved = x.clone().requires_grad_(True)
            torch.autograd.grad(functional.cross_entropy(local(moved), y, reduction="sum"), moved)

    def step(task: Task) -> Tensor:
        gradient = task.losses_and_gradient(params, inputs, labels, share)[1]
        return torch.addcmul(params, gradient, rate, value=-1.0, out=gradient)

    return {
        "parameters": [plain_step, lambda: step(alone), lambda: step(together)],
        "inputs": [
            plain_inputs,
            lambda: alone.input_gradient(params, inputs, labels),
            lambda: together.input_gradient(params, inputs, labels),
        ],
    }


def least(sides: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The CPU seconds of each side's fastest turn, after one that does not count."""
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats + 1):
        for seconds, side in zip(times, sides, strict=True):
            began = time.process_time()
            side()
            seconds.append(time.process_time() - began)
    return [min(seconds[1:]) for seconds in times]


if __name__ == "__main__":
    main()
