"""Time packing a million clients, and a round of training against a round with a hundred.

    python -m benchmarks.million [--smallest]

Work: 20 examples x 32 features per client, multinomial logistic regression, cohort 50, one local epoch. Sizes take
turns within one process. Seconds are processor time; of packing the fastest turn counts, of rounds the lower
quartile: another program on the machine then disturbs little.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import wafl
from benchmarks import options

EXAMPLES, FEATURES, CLASSES, COHORT = 20, 32, 10, 50
METHODS: dict[str, wafl.Method] = {
    "FedAvg": wafl.FedAvg(),
    "WAFL": wafl.WAFL(gamma=1.0),
    "DRFA": wafl.DRFA(),
    "DRFA, small steps": wafl.DRFA().with_options(weights_step=1e-9),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 10_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    given = options.read(parser, argv, clients=[60, 600], rounds=2, repeats=1)
    sizes: list[int] = given.clients
    x, y = make(max(sizes))
    ways: dict[str, Callable[[int], object]] = {
        "one array with offsets": lambda n: pack(x, y, n),
        "the same, a quarter held out": lambda n: pack(x, y, n, 0.25),
        "a generator": lambda n: wafl.Federation.from_arrays(pairs(x, y, n), test_fraction=0),
        "of which the generator itself": lambda n: deque(pairs(x, y, n), maxlen=0),
    }
    packing = Table("packing", *(f"{size:,} clients" for size in sizes))
    for name, way in ways.items():
        packing.add_row(name, *(seconds(partial(way, size), given.repeats) for size in sizes))
    Console().print(packing)
    federations = {size: pack(x, y, size) for size in sizes}
    table = Table("milliseconds per round", *(f"{size:,} clients" for size in sizes), "largest / smallest")
    for name, method in METHODS.items():
        seconds_by_size: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(given.repeats):
            for size, clients in federations.items():
                seconds_by_size[size] += rounds_of(clients, method, given.rounds)
        typical = [1e3 * statistics.quantiles(seconds_by_size[size], n=4)[0] for size in sizes]
        table.add_row(name, *(f"{value:.1f}" for value in typical), f"{typical[-1] / typical[0]:.2f}")
    Console().print(table)


def make(clients: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(0)
    y = np.arange(clients * EXAMPLES) % CLASSES
    return generator.random((len(y), FEATURES), dtype=np.float32), y


def pack(x: NDArray[np.float32], y: NDArray[np.int64], clients: int, held_out: float = 0.0) -> wafl.Federation:
    count = clients * EXAMPLES
    offsets = np.arange(0, count + 1, EXAMPLES)
    return wafl.Federation.from_offsets(x[:count], y[:count], offsets, test_fraction=held_out)


def pairs(
    x: NDArray[np.float32], y: NDArray[np.int64], clients: int
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    for begin in range(0, clients * EXAMPLES, EXAMPLES):
        yield x[begin : begin + EXAMPLES], y[begin : begin + EXAMPLES]


def rounds_of(clients: wafl.Federation, method: wafl.Method, rounds: int) -> list[float]:
    """Return the processor seconds of each round but the first."""
    clock = Clock()
    model = wafl.models.mlr(clients)
    wafl.fit(model, clients, method, rounds=rounds + 1, cohort=COHORT, local_epochs=1, callbacks=[clock])
    return [after - before for before, after in zip(clock.at, clock.at[1:], strict=False)]


class Clock(wafl.callbacks.Callback):
    """Looks at the processor's time after each round."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_round(self, moment: wafl.callbacks.Moment) -> None:
        self.at.append(time.process_time())


def seconds(work: Callable[[], object], turns: int) -> str:
    """Return the processor seconds of the fastest turn, and the part that the system took to hand out memory."""
    times: list[tuple[float, float]] = []
    for _ in range(turns):
        before = os.times()
        work()
        after = os.times()
        system = after.system - before.system
        times.append((after.user - before.user + system, system))
    whole, system = min(times)
    return f"{whole:.2f} s, system {system:.2f} s"


if __name__ == "__main__":
    main()
