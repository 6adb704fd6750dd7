"""Speed of linear models: against a plain PyTorch loop, a sweep against single runs, and bounds against none.

    python -m benchmarks.speed [--smallest] [--part plain sweep bounds norms]

``plain``: 100 clients x 525 examples x 784 features, multinomial logistic regression, cohort 10, batch 64, 2 local
epochs, 40 inner steps on both sides. ``sweep``: one sweep over 16 gammas against 16 runs. ``bounds``: WAFL that keeps
moved images within [0, 1] against WAFL that does not; half of the pixels are dark. ``norms``: WAFL against FedAvg on
digits, 20 clients, and for a 6-32-2 network on 1,600 rows; one local step per round with all examples, in processor
time. The sides take turns within one process, and the ratio of the medians is printed: seconds alone mean little on a
machine that does other things too.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import wafl
from benchmarks import options
from benchmarks.contest import plain
from wafl.base.random import Key
from wafl.parts.schedule import LocalWork
from wafl.train.batches import draw_batches

FEATURES, CLASSES = 784, 10
COHORT, BATCH, EPOCHS, RATE, STEPS, GAMMA = 10, 64, 2, 0.01, 40, 0.5

Result = TypeVar("Result")
Work = tuple[nn.Module, wafl.Federation, float]
"""A model, its clients and the learning rate."""


class Schedule(TypedDict):
    cohort: int
    local_epochs: int
    batch_size: int
    learning_rate: float
    seed: int


SCHEDULE: Schedule = {"cohort": COHORT, "local_epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE, "seed": 0}


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sweep", type=int, default=16, help="how many gammas the sweep has")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--examples", type=int, default=525, help="per client")
    given = options.read(parser, argv, rounds=1, repeats=1, sweep=2, clients=COHORT, examples=70)
    for part in given.part:
        Console().print(PARTS[part](given))
    Console().print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")


def against_plain(given: argparse.Namespace) -> Table:
    clients = make_clients(given.clients, given.examples)
    table = Table("work", "plain PyTorch", "wafl", "ratio", "largest parameter difference")
    for name, method in (("FedAvg", wafl.FedAvg()), ("WAFL", wafl.WAFL(gamma=GAMMA, steps=STEPS, tolerance=0))):
        ours, theirs, difference = duel(clients, method, given.rounds, given.repeats)
        table.add_row(
            f"{name}, {given.rounds} rounds",
            f"{theirs:.2f} s",
            f"{ours:.3f} s",
            f"{theirs / ours:.1f}x",
            f"{difference:.1e}",
        )
    return table


def of_gammas(given: argparse.Namespace) -> Table:
    clients, gammas = make_clients(given.clients, given.examples), torch.logspace(-0.3, 2, given.sweep).tolist()
    singles, swept = sweep_against_singles(clients, gammas, given.rounds, given.repeats)
    table = Table(f"WAFL, {len(gammas)} gammas", "single runs", "one sweep", "ratio")
    table.add_row(f"{given.rounds} rounds", f"{singles:.2f} s", f"{swept:.2f} s", f"{singles / swept:.1f}x")
    return table


def of_bounds(given: argparse.Namespace) -> Table:
    clients, rounds = make_images(given.clients, given.examples), min(given.rounds, 3)
    table = Table("norm", "gamma", "without bounds", "within [0, 1]", "ratio")
    for norm, gammas in ((2, (5.0, 0.5, 0.05)), (math.inf, (500.0,)), (1, (0.5,))):
        for gamma in gammas:
            free, within = boxed(clients, gamma, norm, rounds, given.repeats)
            table.add_row(f"{norm:g}", f"{gamma:g}", f"{free:.2f} s", f"{within:.2f} s", f"{within / free:.1f}")
    return table


def of_norms(given: argparse.Namespace) -> Table:
    table = Table("model", "method", "FedAvg", "WAFL", "ratio")
    for work, methods in NORMS.items():
        model, clients, rate = WORKS[work]()
        for name, method in methods.items():
            plain, robust = to_fedavg(model, clients, method, rate, 3 * given.rounds, given.repeats)
            table.add_row(work, name, f"{plain:.2f} s", f"{robust:.2f} s", f"{robust / plain:.1f}")
    return table


PARTS: dict[str, Callable[[argparse.Namespace], Table]] = {
    "plain": against_plain,
    "sweep": of_gammas,
    "bounds": of_bounds,
    "norms": of_norms,
}


def make_clients(count: int, examples: int) -> wafl.Federation:
    """Return Gaussian classes that can be learned, z-scored, with another shift at each client."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(CLASSES, FEATURES, generator=generator)
    pairs: list[tuple[Tensor, Tensor]] = []
    for _ in range(count):
        y = torch.randint(CLASSES, (examples,), generator=generator)
        shift = 0.3 * torch.randn(FEATURES, generator=generator)
        pairs.append((0.2 * centers[y] + torch.randn(examples, FEATURES, generator=generator) + shift, y))
    return wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=CLASSES)


def make_images(count: int, examples: int) -> wafl.Federation:
    """Ten dim patterns with dark pixels, and noise: enough structure to learn."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(CLASSES, FEATURES, generator=generator)
    patterns *= torch.rand(CLASSES, FEATURES, generator=generator) < 0.5
    labels = torch.arange(count * examples) % CLASSES
    noise = torch.rand(len(labels), FEATURES, generator=generator)
    x = patterns[labels] * (0.3 + 0.7 * noise)
    parts = zip(x.split(examples), labels.split(examples), strict=True)
    return wafl.Federation.from_arrays(list(parts), test_fraction=0, bounds=(0.0, 1.0))


def make_digits() -> Work:
    clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
    return wafl.models.mlr(clients), clients, 1.0


def make_rows() -> Work:
    """Return a small network, and 20 clients with 80 rows each."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1600, 6, generator=generator)
    y = (x.sum(1) + x[:, 0] * x[:, 1] > 0).long()
    clients = wafl.Federation.from_arrays(list(zip(x.split(80), y.split(80), strict=True)), test_fraction=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)), clients, 0.1


WORKS: dict[str, Callable[[], Work]] = {"linear, digits": make_digits, "network, 6-32-2": make_rows}
NORMS = {
    "linear, digits": {
        "l_inf, radius 0.12": wafl.WAFL(radius=0.12, norm=math.inf),
        "l_inf, gamma 60": wafl.WAFL(gamma=60.0, norm=math.inf),
        "l1, radius 1": wafl.WAFL(radius=1.0, norm=1),
        "l1, gamma 0.13": wafl.WAFL(gamma=0.13, norm=1),
    },
    "network, 6-32-2": {"l2, gamma 5": wafl.WAFL(gamma=5.0), "l2, radius 0.1": wafl.WAFL(radius=0.1)},
}
"""The balls whose time is compared with FedAvg; digits stay within their bounds."""


def to_fedavg(
    model: nn.Module, clients: wafl.Federation, method: wafl.Method, rate: float, rounds: int, repeats: int
) -> tuple[float, float]:
    """Median seconds of the processor for FedAvg and for a method, with all examples in each step."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for trained, taken in zip((wafl.FedAvg(), method), seconds, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", wafl.ConcavityWarning)
                began = time.process_time()
                wafl.fit(model, clients, trained, rounds=rounds, local_steps=1, batch_size=None, learning_rate=rate)
                taken.append(time.process_time() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def boxed(clients: wafl.Federation, gamma: float, norm: float, rounds: int, repeats: int) -> tuple[float, float]:
    """Median seconds without and with bounds."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    model = wafl.models.mlr(clients)
    for _ in range(repeats):
        for bounded, runs in seconds.items():
            method = wafl.WAFL(gamma=gamma, norm=norm, bounds=(0.0, 1.0) if bounded else None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", wafl.ConcavityWarning)
                began = time.perf_counter()
                wafl.fit(model, clients, method, rounds=rounds, cohort=COHORT, local_epochs=1, learning_rate=0.05)
                runs.append(time.perf_counter() - began)
    return statistics.median(seconds[False]), statistics.median(seconds[True])


def duel(clients: wafl.Federation, method: wafl.Method, rounds: int, repeats: int) -> tuple[float, float, float]:
    """Median seconds of both sides on the same work, and the largest difference between their parameters."""
    model = wafl.models.mlr(clients)
    plan = wafl.fit(model, clients, method, rounds=rounds, **SCHEDULE)
    cohorts = [list(record.cohort) for record in plan.history]
    rows = batches_of(clients, cohorts)
    shards = [clients.train.of(client) for client in range(clients.num_clients)]
    gamma = GAMMA if method.objective is not None else None
    ours, theirs, difference = in_turn(
        method.name,
        lambda: wafl.fit(model, clients, method, rounds=rounds, **SCHEDULE),
        lambda: plain.train(model, shards, cohorts, rows, RATE, gamma, STEPS),
        repeats,
    )
    return statistics.median(ours), statistics.median(theirs), difference


def in_turn(
    name: str,
    ours: Callable[[], wafl.Run],
    theirs: Callable[[], nn.Module],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float], float]:
    """Return the seconds of both sides, which take turns, and the largest difference between their parameters."""
    mine: list[float] = []
    plain: list[float] = []
    difference = 0.0
    for _ in range(repeats):
        run, seconds = timed(ours, clock)
        mine.append(seconds)
        module, seconds = timed(theirs, clock)
        plain.append(seconds)
        apart = [float((run.params[key] - value).abs().max()) for key, value in module.state_dict().items()]
        difference = max(difference, *apart)
    if difference > 1e-4:
        raise SystemExit(f"{name}: the two sides differ by {difference:.1e}, more than 1e-4")
    return mine, plain, difference


def batches_of(clients: wafl.Federation, cohorts: Sequence[Sequence[int]]) -> plain.Rows:
    """Return the rows of every local step, as wafl draws them."""
    work = LocalWork(None, EPOCHS, BATCH)
    drawn: dict[tuple[int, int], list[Tensor]] = {}
    for round_, cohort in enumerate(cohorts):
        for client in cohort:
            key = Key(*(torch.tensor([value]) for value in (0, round_, client, 0)))
            batches = draw_batches(work, key, torch.tensor([clients.num_examples[client]]), BATCH)
            drawn[round_, client] = [
                batches.index[0, step][batches.real[0, step]] for step in range(max(batches.steps))
            ]

    def rows(round_: int, client: int) -> Iterator[Tensor]:
        return iter(drawn[round_, client])

    return rows


def sweep_against_singles(
    clients: wafl.Federation, gammas: list[float], rounds: int, repeats: int
) -> tuple[float, float]:
    """Median seconds of one run per gamma, and of one sweep over all of them."""
    model = wafl.models.mlr(clients)
    method = wafl.WAFL(steps=STEPS, tolerance=0)
    singles: list[float] = []
    swept: list[float] = []
    for _ in range(repeats):
        _, seconds = timed(
            lambda: [
                wafl.fit(model, clients, method.with_options(gamma=gamma), rounds=rounds, **SCHEDULE)
                for gamma in gammas
            ]
        )
        singles.append(seconds)
        _, seconds = timed(lambda: wafl.sweep(model, clients, method, {"gamma": gammas}, rounds=rounds, **SCHEDULE))
        swept.append(seconds)
    return statistics.median(singles), statistics.median(swept)


def timed(work: Callable[[], Result], clock: Callable[[], float] = time.perf_counter) -> tuple[Result, float]:
    began = clock()
    result = work()
    return result, clock() - began


if __name__ == "__main__":
    main()
