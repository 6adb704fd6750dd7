"""Gradients of networks with convolutions on a CPU, against plain PyTorch with one client after another.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/convolutions.py [--smallest]

Work: ``wafl.models.cnn``; the gradients of a few clients in the parameters, with the update that follows, and in the
inputs. *in turn* takes one client after another, *together* computes all with ``vmap``; which of the two a training
takes is decided by the products per example (``convolutions.py``). All sides take turns within one process, and
ratios are of their least CPU seconds.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

import wafl
from benchmarks import options, unequal
from wafl.tasks.layout import Layout
from wafl.tasks.losses import CrossEntropy
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task, Traits

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
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--first", type=int, default=len(SIZES), help="how many of the sizes")
    given = options.read(parser, argv, repeats=1, first=1)
    table = Table(
        "images", "channels", "batch", "clients", "products", "gradient in", "in turn", "together", title="ratio"
    )
    for shape, channels, batch, lanes in SIZES[: given.first]:
        clients = unequal.make_clients([batch] * 2, shape)
        model = wafl.models.cnn(clients, channels=channels)
        task = make_task(model)
        products = task.convolution_products(task.initial(), clients.train.of(0)[0][:1])
        work = (" x ".join(map(str, shape)), f"{channels[0]}, {channels[1]}", str(batch), str(lanes), f"{products:,}")
        for what, sides in sides_of(model, *clients.train.of(0), lanes).items():
            plain, ours, together = least(sides, given.repeats)
            table.add_row(*work, what, f"{ours / plain:.2f}", f"{together / plain:.2f}")
    Console(width=120).print(table, f"torch {torch.__version__}, {torch.get_num_threads()} threads", sep="\n")


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
        gradient = task.gradient(params, inputs, labels, share)
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
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats + 1):
        for seconds, side in zip(found, sides, strict=True):
            began = time.process_time()
            side()
            seconds.append(time.process_time() - began)
    return [min(seconds[1:]) for seconds in found]


if __name__ == "__main__":
    main()
