"""Measure the gain of every special path: the same work with and without it.

    OMP_NUM_THREADS=1 python -m benchmarks.paths [--smallest] [--device cuda]

A path that gains less than 15% is removed. Both sides take turns within one process, and the least times count: of the
processor on a CPU, and of the clock on a GPU. Paths of a GPU are skipped without one.
"""

from __future__ import annotations

import math
import pkgutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import wafl
from benchmarks import brought_models, networks, options, speed
from wafl.objectives.ball.input_space import InputSpace, LinearSpace
from wafl.objectives.ball.wasserstein import Wasserstein
from wafl.theory.phi.incumbents import Incumbent, Summit
from wafl.train.step import Eager

Work = Callable[[], object]


@dataclass(frozen=True)
class Path:
    """A special path, its file, the work that takes it, and the replacements that disable it."""

    name: str
    file: str
    work: Callable[[bool], Work]
    instead: dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = options.read(parser, argv, repeats=1)
    for path in (*ON_CPU, *ON_GPU):  # here too, so that no name goes stale where there is no GPU
        for name in path.instead:
            pkgutil.resolve_name(name)
    clock = time.process_time if given.device == "cpu" else time.perf_counter
    table = Table("path", "file", "with, s", "without, s", "without / with", title=given.device)
    for path in ON_CPU if given.device == "cpu" else ON_GPU:
        work, taken = path.work(given.smallest), list[list[float]]([[], []])
        for _ in range(given.repeats):
            for side, instead in enumerate(({}, path.instead)):
                with ExitStack() as patches:
                    for name, value in instead.items():
                        patches.enter_context(mock.patch(name, value))
                    began = clock()
                    work()
                    taken[side].append(clock() - began)
        fast, slow = map(min, taken)
        table.add_row(path.name, path.file, f"{fast:.2f}", f"{slow:.2f}", f"{slow / fast:.2f}")
        print(path.name, f"{fast:.2f} {slow:.2f} {slow / fast:.2f}", flush=True)
    Console(width=140).print(table)


def trained(method: wafl.Method, make: Callable[[wafl.Federation], nn.Module] = wafl.models.mlr, **fit: Any) -> Any:
    """Train rounds of a method on 784 pixels in [0, 1]; or on images, if there is a shape."""
    shape, rounds, clients = fit.pop("shape", None), fit.pop("rounds", 5), fit.pop("clients", 100)

    def work(smallest: bool) -> Work:
        sizes = [20 if smallest else 525] * (4 if smallest else clients)
        some = networks.make_clients(sizes, shape) if shape else speed.make_images(len(sizes), sizes[0])
        schedule: dict[str, Any] = {
            "rounds": 1 if smallest else rounds,
            "cohort": 2 if smallest else 10,
            "local_epochs": 1,
            **fit,
        }
        model = make(some)
        return lambda: wafl.fit(model, some, method, batch_size=64, **schedule)

    return work


def certified(radii: Sequence[float]) -> Callable[[bool], Work]:
    def work(smallest: bool) -> Work:
        clients = wafl.load_dataset("digits").partition(num_clients=20, iid=True)
        clients = clients.of_clients([0]) if smallest else clients
        run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=20, local_epochs=1, learning_rate=0.1)
        return lambda: wafl.certify(run, clients, radii=radii, achieved=False)

    return work


def perceptron(units: int) -> Callable[[wafl.Federation], nn.Module]:
    def make(clients: wafl.Federation) -> nn.Module:
        torch.manual_seed(0)
        features = math.prod(clients.input_shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(features, units), nn.ReLU(), nn.Linear(units, 10))

    return make


def small_network(clients: wafl.Federation) -> nn.Module:
    return wafl.models.cnn(clients, channels=(4, 8))


def transformer(clients: wafl.Federation) -> nn.Module:
    torch.manual_seed(0)
    return brought_models.VisionTransformer(10)


def in_space(kind: type[InputSpace]) -> Any:
    def space(self: Wasserstein, problem: Any, x: Any, y: Any, gamma: Any) -> InputSpace:
        return kind(problem, x, y, gamma, self.norm, self.power, self.box)

    return space


def not_settled(ball: Any, a: Any, y: Any, best: Incumbent, gamma: float, allowed: torch.Tensor) -> Summit:
    return Summit(best.p, best.value, best.cost, torch.full_like(allowed, torch.inf))


def nothing(*_: Any) -> None:
    return None


FREE, BOXED = wafl.WAFL(gamma=0.5, bounds=None), wafl.WAFL(gamma=0.5, bounds=(0, 1))
TASKS, SPACE = "wafl.tasks.structured", "wafl.objectives.ball.wasserstein.Wasserstein._space"
ON_CPU = [
    Path(
        "derivatives of a linear model in closed form", "tasks/structured.py", trained(wafl.FedAvg()),
        {f"{TASKS}._only_linear_layer": nothing, f"{TASKS}._chain": nothing},
    ),
    Path("derivatives by a chain of layers, 200 units", "tasks/structure/sequence.py",
         trained(wafl.FedAvg(), perceptron(200)), {f"{TASKS}._chain": nothing}),
    Path("the same, 32 units on 64 features", "tasks/structure/sequence.py",
         trained(wafl.FedAvg(), perceptron(32), shape=(1, 8, 8)), {f"{TASKS}._chain": nothing}),
    Path("small convolutions in lanes", "tasks/structure/sequence.py",
         trained(wafl.FedAvg(), small_network, shape=(1, 8, 8)), {"wafl.tasks.fitness.BUSY": 0}),
    Path("products without oneDNN, on ARM", "tasks/products.py", trained(wafl.FedAvg()),
         {"wafl.tasks.products.DETOUR": False}),
    Path("the ascent among outputs", "objectives/ball/class_space.py", trained(FREE), {SPACE: in_space(LinearSpace)}),
    Path("its extrapolation", "objectives/ball/class_space.py", trained(wafl.WAFL(gamma=0.05, bounds=None)),
         {"wafl.objectives.ball.class_space.TURN": 10**9}),
    Path("the ascent within a box", "objectives/ball/class_space.py", trained(BOXED), {SPACE: in_space(LinearSpace)}),
    Path("full steps of a linear model in l_inf", "objectives/ball/input_space.py",
         trained(wafl.WAFL(gamma=500.0, norm=math.inf, bounds=None)), {SPACE: in_space(InputSpace)}),
    Path("a certificate around a settled point", "theory/phi/settled.py", certified([2.0, 4.0]),
         {"wafl.theory.phi.linear_model.settled_above": not_settled}),
]  # fmt: skip
"""Paths of a CPU."""

IMAGE: dict[str, Any] = {"shape": (3, 32, 32), "clients": 10, "rounds": 2, "device": "cuda", "local_epochs": 4}
KERNEL = wafl.WAFL(gamma=0.5, bounds=None, steps=40, tolerance=0)
CNN = wafl.WAFL(gamma=10.0, bounds=None, steps=5, tolerance=0)
ON_GPU = [
    Path("recorded steps", "train/lanes/captured.py", trained(CNN, wafl.models.cnn, **IMAGE),
         {"wafl.train.lanes.lanes.Captured": Eager}),
    Path("lanes in streams", "tasks/modes/one_by_one.py", trained(CNN, wafl.models.cnn, **IMAGE),
         {"wafl.tasks.modes.one_by_one.MOST_STREAMS": 1, "wafl.tasks.modes.one_by_one._POOL": []}),
    Path("bias, ReLU and pooling in one kernel, tf32", "tasks/gpu/kernels.py",
         trained(CNN, wafl.models.cnn, precision="tf32", **IMAGE),
         {"wafl.tasks.gpu.kernels._kernel": nothing}),
    Path("convolution and pooling in one kernel, bfloat16", "tasks/gpu/kernels.py",
         trained(CNN, wafl.models.cnn, precision="bfloat16", **IMAGE), {f"{TASKS}.fuse": nothing}),
    Path("parameters at aligned addresses, tf32", "tasks/gpu/precision.py",
         trained(CNN, transformer, precision="tf32", **IMAGE), {"wafl.tasks.gpu.precision.aligned": lambda x: x}),
    Path("the ascent among outputs in one kernel", "objectives/ball/one_kernel.py", trained(KERNEL, device="cuda"),
         {"wafl.objectives.ball.class_space.kernels": nothing}),
]  # fmt: skip
"""Paths of a GPU."""


if __name__ == "__main__":
    main()
