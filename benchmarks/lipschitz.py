"""How much rescaling slows a local step of ``wafl.models.lipschitz``, a network that is 1-Lipschitz by construction.

    python -m benchmarks.lipschitz [--smallest] [--width 64] [--sizes 1x500 20x25]

Milliseconds per local step, against the same network without rescaling, for one client with 500 examples per step and
20 with 25; *together* takes one step per round, where all clients share their weights, and *apart* several. Images are
random: only time is measured. Without CUDA everything runs on the CPU, where nothing is captured.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import wafl
from benchmarks import options
from wafl.base.random import Key
from wafl.parts.schedule import LocalWork
from wafl.tasks.gpu.precision import computing
from wafl.tasks.rescaling import make_plain
from wafl.tasks.structured import make_task
from wafl.train.client import local_update
from wafl.train.client_task import ClientTask, LaneInput
from wafl.train.lanes.captured import Captured
from wafl.train.lanes.lanes import in_pieces
from wafl.train.step import Eager

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CLASSES = 10


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--width", type=int, default=64, help="channels of the first convolutions")
    parser.add_argument("--depth", type=int, default=3, help="convolutions at each size")
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=8, help="local steps of clients apart")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is measured")
    parser.add_argument("--image", nargs=3, type=int, default=[3, 32, 32], help="the shape of an image")
    parser.add_argument("--sizes", nargs="+", default=["1x500", "20x25"], help="clients x examples per step")
    given = options.read(parser, argv, image=[1, 8, 8], sizes=["2x4"], steps=2, repeats=1, width=4, depth=1)
    Console(width=120).print(cost(given))
    name = torch.cuda.get_device_name() if HERE.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    Console().print(f"torch {torch.__version__}, {name}")


def cost(given: argparse.Namespace) -> Table:
    table = Table("ms per local step", "clients x examples", "weights", "rescaled", "plain", "ratio")
    inner = 1 if given.smallest else 10
    for method in (wafl.FedAvg(), wafl.WAFL(gamma=2.0, steps=inner, tolerance=0, bounds=None)):
        for size in given.sizes:
            count, batch = map(int, size.split("x"))
            for words, steps in (("together", 1), ("apart", given.steps)):
                with computing(given.precision, HERE):
                    ours, plain = milliseconds(given, method, count, batch, steps)
                table.add_row(method.name, size, words, f"{ours:.2f}", f"{plain:.2f}", f"{ours / plain:.2f}")
    return table


def milliseconds(given: argparse.Namespace, method: wafl.Method, count: int, batch: int, steps: int) -> list[float]:
    """Per local step of all clients, with rescaling and without; both take turns, and the least time counts."""
    draws = torch.Generator().manual_seed(0)
    pairs = [
        (torch.rand(batch, *given.image, generator=draws), torch.randint(CLASSES, (batch,), generator=draws))
        for _ in range(count)
    ]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=CLASSES)
    model = wafl.models.lipschitz(clients, width=given.width, depth=given.depth)
    sides = [updating(each, clients, method, batch, steps) for each in (model, make_plain(copy.deepcopy(model)))]
    took: list[list[float]] = [[], []]
    for _ in range(given.repeats + 1):
        for side, times in zip(sides, took, strict=True):
            times.append(1e3 * seconds(side) / steps)
    return [min(times[1:]) for times in took]


def updating(
    model: nn.Module, clients: wafl.Federation, method: wafl.Method, batch: int, steps: int
) -> Callable[[], None]:
    """One round of all clients, who begin with the same parameters."""
    count, task = clients.num_clients, make_task(model, "margin", HERE)
    client = ClientTask(task, method.objective, LocalWork(steps, None, batch), clients.train.to(HERE))
    numbers = {"learning_rate": 0.01, "momentum": 0.0, "weight_decay": 0.0}
    if method.objective is not None:
        numbers |= method.objective.scalars()
    places = torch.arange(count, device=HERE)
    zero = torch.zeros_like(places)
    lanes = LaneInput(
        params=task.initial().to(HERE).expand(count, -1),
        clients=places,
        scalars={name: torch.full((count,), value, device=HERE) for name, value in numbers.items()},
        key=Key(zero, zero, places, zero),
    )
    take_step = Captured() if HERE.type == "cuda" else Eager()

    def update() -> None:
        for piece in in_pieces(client, lanes, take_step, count):
            local_update(client, piece, take_step)

    return update


def seconds(work: Callable[[], object]) -> float:
    """How long it takes: seconds of the processor, or on a GPU of the clock."""
    clock = now if HERE.type == "cuda" else time.process_time
    began = clock()
    work()
    return clock() - began


def now() -> float:
    if HERE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
