"""``wafl.fit`` on a GPU against the same images trained centrally, captured in a CUDA graph.

    python -m benchmarks.gpu [--smallest] [--part steps models mlr sweep paper methods]

A time per local step is the median round of a training over its local steps, after the first round, which records. It
includes all that the server does in a round. ``steps``: the default CNN on 3 x 32 x 32, batch 64, 10 inner steps of
WAFL without early stop, milliseconds per local step of the whole cohort. ``models``: networks for which wafl is
not tuned, 10 clients x 32 examples, 5 inner steps, and the default CNN with 100 clients. *Apart* is one captured model
per client, which train side by side, each alone, without any federation. The opponents take the fastest algorithms of
cuDNN, including those whose bits change each time; wafl does so only in the column *any bits*, with
``deterministic=False``. ``mlr``: a linear model on 784 features, 40 inner steps. ``sweep``: 16 gammas in one run
against 16 runs. ``paper``: the paper's CIFAR-10 setting (20 clients, cohort 10, 2 local epochs), against the same
number of captured central steps. ``methods``: seven methods on data of MNIST's size. Images are random: only time
counts. Without CUDA everything runs on the CPU, without CUDA graphs.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import wafl
from benchmarks import brought_models as brought
from benchmarks import options
from benchmarks.contest.shared.nets import resnet18
from wafl.tasks.gpu.precision import BFLOAT16, computing, laid_out, layers

BATCH, SMALL, RATE, GAMMA, CLASSES = 64, 32, 0.001, 1000.0, 10  # with random labels, a smaller gamma diverges
EXAMPLES = 8 * BATCH
IMAGE, PIXELS = (3, 32, 32), (784,)
HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STREAMS: list[torch.cuda.Stream] = []


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="*", default=[], help="of the part models, by parts of their names")
    parser.add_argument("--lanes", nargs="+", type=int, default=[10, 100])
    parser.add_argument("--precision", nargs="+", default=["float32", "tf32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=80, help="local steps per round, by default the paper's")
    parser.add_argument("--measured", type=int, default=3, help="rounds that are measured, after the first")
    parser.add_argument("--rounds", type=int, default=200, help="of the paper's setting")
    parser.add_argument("--size", type=int, default=2500, help="examples per client of the paper's setting")
    parser.add_argument("--channels", nargs=2, type=int, default=[32, 64])
    smallest = {"lanes": [2], "precision": ["tf32"], "steps": 1, "rounds": 1, "size": 64, "channels": [1, 1]}
    smallest["measured"] = 1
    given = options.read(parser, argv, part=["steps", "models", "mlr", "sweep"], **smallest)
    for part in given.part:
        Console(width=140).print(PARTS[part](given))
    name = torch.cuda.get_device_name() if HERE.type == "cuda" else "cpu, nothing captured"
    Console().print(f"torch {torch.__version__}, {name}")


def steps(given: argparse.Namespace) -> Table:
    table = Table("CNN, ms per local step", "lanes", "precision", "central", "wafl", "ratio")
    inner = 1 if given.smallest else 10
    for method in (wafl.FedAvg(), wafl.WAFL(gamma=GAMMA, steps=inner, tolerance=0, bounds=None)):
        for lanes in given.lanes:
            clients = make_clients(lanes, EXAMPLES, IMAGE)
            for precision in given.precision:
                with computing(precision, HERE, deterministic=False):
                    theirs = central(lanes, method, precision, given.channels)
                ours = trained(cnn(clients, given.channels), clients, method, given, precision=precision)
                row = [f"{theirs:.2f}", f"{ours.step:.2f}", f"{ours.step / theirs:.2f}"]
                table.add_row(method.name, str(lanes), precision, *row)
                print(method.name, lanes, precision, *row, flush=True)
    return table


@dataclass(frozen=True)
class Brought:
    """A model, the examples that it takes, and the layer at whose output they are moved, if not at the inputs."""

    name: str
    make: Callable[[], nn.Module]
    draw: Callable[[int], Tensor]
    clients: int = 10
    layer: str | None = None


def models(given: argparse.Namespace) -> Table:
    table = Table(
        "ms per local step", "method", "precision", "wafl", "any bits", "apart", "central", "wafl to apart",
        "any bits to apart", "ready after", "peak GiB",
    )  # fmt: skip
    for model in brought_models(given):
        for precision in given.precision:
            for inner in (0, 1 if given.smallest else 5):
                if inner == 0:
                    method = wafl.FedAvg()
                else:
                    method = wafl.WAFL(gamma=GAMMA, steps=inner, tolerance=0, bounds=None, space=model.layer)
                with computing(precision, HERE, deterministic=False):
                    together = plain([model.make()], model, SMALL * model.clients, inner, precision)
                    apart = plain([model.make() for _ in range(model.clients)], model, SMALL, inner, precision)
                pairs = [(model.draw(4 * SMALL), torch.randint(CLASSES, (4 * SMALL,))) for _ in range(model.clients)]
                clients = wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=CLASSES)
                count = 1 if given.smallest else 8 if inner else 20
                ours, free = (
                    trained(
                        model.make(), clients, method, given,
                        batch=SMALL, steps=count, precision=precision, deterministic=deterministic,
                    )
                    for deterministic in (True, False)
                )  # fmt: skip
                numbers = [f"{each:.2f}" for each in (ours.step, free.step, apart, together)]
                ratios = [f"{each.step / apart:.2f}" for each in (ours, free)]
                row = [*numbers, *ratios, f"{ours.ready:.1f} s", f"{ours.peak / 2**30:.1f}"]
                table.add_row(model.name, method.name, precision, *row)
                print(model.name, method.name, precision, *row, flush=True)
    return table


def brought_models(given: argparse.Namespace) -> list[Brought]:
    def images(count: int) -> Tensor:
        return torch.rand(count, *IMAGE)

    def words(count: int) -> Tensor:
        return torch.randint(1000, (count, 4 if given.smallest else 64))

    if given.smallest:
        return [
            Brought("ResNet-18", lambda: resnet18(CLASSES, 2), images, clients=2),
            Brought("ViT", lambda: brought.VisionTransformer(CLASSES, 6, 1), images, clients=2),
            Brought("torch.nn", lambda: brought.encoder(CLASSES, 8, 1), images, clients=2),
            Brought("text", lambda: brought.TextTransformer(CLASSES, 1000, 4, 1), words, 2, layer="embedding"),
        ]
    one = make_clients(1, BATCH, IMAGE)
    chosen = [
        *(Brought(f"CNN, {count} clients", lambda: wafl.models.cnn(one), images, count) for count in given.lanes),
        Brought("ResNet-18, GroupNorm", lambda: resnet18(CLASSES), images),
        Brought("ViT, 6 layers of 192", lambda: brought.VisionTransformer(CLASSES), images),
        Brought("TransformerEncoder", lambda: brought.encoder(CLASSES), images),
        Brought("text transformer", lambda: brought.TextTransformer(CLASSES), words, layer="embedding"),
    ]
    return [model for model in chosen if not given.models or any(name in model.name for name in given.models)]


@dataclass(frozen=True)
class Trained:
    """The milliseconds per local step, the seconds until the first round has ended, and the peak of memory in bytes."""

    step: float
    ready: float
    peak: int


def trained(
    model: nn.Module,
    clients: wafl.Federation,
    method: wafl.Method,
    given: argparse.Namespace,
    *,
    batch: int = BATCH,
    steps: int | None = None,
    precision: str = "float32",
    deterministic: bool = True,
) -> Trained:
    """Measure ``wafl.fit`` with all clients in every round: the median of the rounds after the first."""
    count, ends = given.steps if steps is None else steps, list[float]()
    if HERE.type == "cuda":
        gc.collect()  # of trainings before this one
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = _now()
    wafl.fit(
        model,
        clients,
        method,
        rounds=1 + given.measured,
        local_steps=count,
        batch_size=batch,
        learning_rate=RATE,
        precision=precision,
        deterministic=deterministic,
        device=HERE.type,
        callbacks=[lambda _: ends.append(_now())],
    )
    took = median(later - earlier for earlier, later in pairwise(ends))
    peak = torch.cuda.max_memory_allocated() if HERE.type == "cuda" else 0
    return Trained(1e3 * took / count, ends[0] - began, peak)


def mlr(given: argparse.Namespace) -> Table:
    table = Table(f"MLR, {given.lanes[0]} lanes, 784 features", "ms per local step")
    clients = make_clients(given.lanes[0], EXAMPLES, PIXELS)
    every = {
        "WAFL, 40 inner steps": wafl.WAFL(gamma=GAMMA, steps=40, tolerance=0, bounds=None),
        "FedAvg": wafl.FedAvg(),
    }
    for name, method in every.items():
        table.add_row(name, f"{trained(wafl.models.mlr(clients), clients, method, given).step:.3f}")
    return table


def sweep(given: argparse.Namespace) -> Table:
    gammas: list[float] = torch.logspace(-0.3, 2, 2 if given.smallest else 16).tolist()
    clients = make_clients(given.lanes[0], BATCH if given.smallest else EXAMPLES, PIXELS)
    model, method = wafl.models.mlr(clients), wafl.WAFL(steps=40, tolerance=0, bounds=None)

    def run(chosen: list[float]) -> None:
        wafl.sweep(model, clients, method, {"gamma": chosen}, rounds=5, local_epochs=1, device=HERE.type)

    one, all_ = seconds(lambda: run(gammas[:1])), seconds(lambda: run(gammas))
    table = Table(f"a sweep of {len(gammas)}, MLR", f"{len(gammas)} runs", "one sweep", "ratio")
    table.add_row("WAFL, 5 rounds", f"{len(gammas) * one:.2f} s", f"{all_:.2f} s", f"{all_ / one / len(gammas):.2f}")
    return table


def paper(given: argparse.Namespace) -> Table:
    clients = make_clients(20, given.size, IMAGE)
    method = wafl.WAFL(gamma=GAMMA, steps=10, tolerance=0, bounds=None)
    took = seconds(
        lambda: wafl.fit(
            cnn(clients, given.channels),
            clients,
            method,
            rounds=given.rounds,
            cohort=10,
            local_epochs=2,
            batch_size=BATCH,
            precision=BFLOAT16,
            device=HERE.type,
        )
    )
    with computing(BFLOAT16, HERE, deterministic=False):
        central_step = central(10, method, BFLOAT16, given.channels)
    count = given.rounds * 2 * -(-given.size // BATCH)
    table = Table("the paper's CIFAR-10 setting, bfloat16", "wafl", "captured central steps", "ratio")
    whole = central_step * count / 1e3
    table.add_row(f"WAFL, {given.rounds} rounds", f"{took:.1f} s", f"{whole:.1f} s", f"{took / whole:.2f}")
    return table


def methods(given: argparse.Namespace) -> Table:
    clients = make_clients(100, 525, PIXELS)
    table = Table("MLR, 100 clients x 525 x 784, 100 rounds of cohort 10", "seconds")
    every = [wafl.FedAvg(), wafl.WAFL(), wafl.FedPGM(), wafl.FedFGSM(), wafl.AFL(), wafl.DRFA(), wafl.FedRobust()]
    total = 0.0
    for method in every:
        agnostic = method.name == "AFL"  # one step of every client per round, so that the number of steps is equal

        def train(method: wafl.Method = method, agnostic: bool = agnostic) -> None:
            wafl.fit(
                wafl.models.mlr(clients),
                clients,
                method,
                rounds=180 if agnostic else 100,
                cohort=None if agnostic else 10,
                local_steps=1 if agnostic else None,
                local_epochs=None if agnostic else 2,
                device=HERE.type,
            )

        took = seconds(train)
        total += took
        table.add_row(method.name, f"{took:.1f}")
    table.add_row("together", f"{total:.1f}")
    return table


def cnn(clients: wafl.Federation, channels: list[int]) -> nn.Module:
    first, second = channels
    return wafl.models.cnn(clients, channels=(first, second))


def make_clients(count: int, examples: int, shape: tuple[int, ...]) -> wafl.Federation:
    generator = torch.Generator().manual_seed(0)

    def client() -> tuple[Tensor, Tensor]:
        x = torch.rand(examples, *shape, generator=generator)
        return x, torch.randint(CLASSES, (examples,), generator=generator)

    return wafl.Federation.from_arrays([client() for _ in range(count)], test_fraction=0, num_classes=CLASSES)


def central(count: int, method: wafl.Method, precision: str, channels: list[int]) -> float:
    """Milliseconds per step of one model on the images of all clients, captured if there is a GPU."""
    model = Brought("CNN", lambda: cnn(make_clients(1, BATCH, IMAGE), channels), lambda n: torch.rand(n, *IMAGE))
    assert method.objective is None or isinstance(method.objective, wafl.objectives.Wasserstein)
    inner = 0 if method.objective is None else method.objective.steps
    return plain([model.make()], model, count * BATCH, inner, precision)


def plain(modules: Sequence[nn.Module], kind: Brought, batch: int, inner: int, precision: str) -> float:
    """Milliseconds in which each of these models, on its own batch, takes a step in plain PyTorch, captured."""
    each = [alone(module.to(HERE), kind, batch, inner, precision) for module in modules]
    streams = side_streams(len(each) - 1) if HERE.type == "cuda" else []

    def step() -> None:
        if not streams:
            for one in each:
                one()
            return
        here = torch.cuda.current_stream()
        for one, stream in zip(each, [here, *streams], strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                one()
        for stream in streams:
            here.wait_stream(stream)

    replay = captured_graph(step) if HERE.type == "cuda" else step
    replay()
    return 1e3 * median(seconds(replay, 3) for _ in range(5)) if HERE.type == "cuda" else 1e3 * seconds(replay)


def alone(model: nn.Module, kind: Brought, batch: int, inner: int, precision: str) -> Callable[[], None]:
    """One step of a model: examples are moved up the gradient, and the parameters down."""
    x, y = kind.draw(batch).to(HERE), torch.randint(CLASSES, (batch,), device=HERE)
    if precision == BFLOAT16 and HERE.type == "cuda":
        x = laid_out(x)
        for param in model.parameters():
            param.data = laid_out(param.data)
    params = list(model.parameters())

    def loss(inputs: Tensor, reduction: str, *, behind: bool = False) -> Tensor:
        with computing(precision, HERE, deterministic=False), layers(HERE):
            outputs = (cast(brought.TextTransformer, model).behind if behind else model)(inputs)
        return nn.functional.cross_entropy(outputs.float(), y, reduction=reduction)

    def step() -> None:
        if inner and kind.layer:
            base = model.get_submodule(kind.layer)(x)
            start = base.detach()
        else:
            base = start = x
        moved, behind = start, bool(inner and kind.layer)
        for _ in range(inner):
            moved = moved.detach().requires_grad_()
            moved = start + torch.autograd.grad(loss(moved, "sum", behind=behind), moved)[0] / (2.0 * GAMMA)
        # Where a layer's output is moved, the layer learns too.
        slopes = torch.autograd.grad(loss(base + (moved - start).detach(), "mean", behind=behind), params)
        with torch.no_grad():
            for param, slope in zip(params, slopes, strict=True):
                param.sub_(slope, alpha=RATE)

    return step


def side_streams(count: int) -> list[torch.cuda.Stream]:
    """Streams that all opponents share: libraries keep a workspace for each stream that they ever saw."""
    while len(STREAMS) < count:
        STREAMS.append(torch.cuda.Stream())
    return STREAMS[:count]


def captured_graph(work: Callable[[], None]) -> Callable[[], None]:
    (side,) = side_streams(1)
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    began = _now()
    for _ in range(repeats):
        work()
    return (_now() - began) / repeats


def _now() -> float:
    if HERE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


PARTS = {"steps": steps, "models": models, "mlr": mlr, "sweep": sweep, "paper": paper, "methods": methods}

if __name__ == "__main__":
    main()
