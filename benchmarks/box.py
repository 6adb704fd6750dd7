"""What it costs to keep moved examples within the bounds of the data: WAFL with bounds against WAFL without.

    python -m benchmarks.box [--smallest]

Work: 100 clients x 525 images x 784 pixels in [0, 1], half of them dark, multinomial logistic regression, cohort 10,
batch 64. The sides take turns within one process, and the ratio of the medians is printed.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

import wafl
from benchmarks import options

FEATURES, CLASSES, COHORT = 784, 10, 10


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--examples", type=int, default=525, help="per client")
    given = options.read(parser, argv, rounds=1, repeats=1, clients=COHORT, examples=70)
    clients = make_clients(given.clients, given.examples)
    table = Table("norm", "gamma", "without bounds", "within [0, 1]", "ratio")
    for norm, gammas in ((2, (5.0, 0.5, 0.05)), (math.inf, (500.0,)), (1, (0.5,))):
        for gamma in gammas:
            free, boxed = duel(clients, gamma, norm, given.rounds, given.repeats)
            table.add_row(f"{norm:g}", f"{gamma:g}", f"{free:.2f} s", f"{boxed:.2f} s", f"{boxed / free:.1f}")
    Console().print(table)


def make_clients(count: int, examples: int) -> wafl.Federation:
    """Ten dim patterns with dark pixels, and noise: enough structure to learn."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(CLASSES, FEATURES, generator=generator)
    patterns *= torch.rand(CLASSES, FEATURES, generator=generator) < 0.5
    labels = torch.arange(count * examples) % CLASSES
    noise = torch.rand(len(labels), FEATURES, generator=generator)
    x = patterns[labels] * (0.3 + 0.7 * noise)
    parts = zip(x.split(examples), labels.split(examples), strict=True)
    return wafl.Federation.from_arrays(list(parts), test_fraction=0, bounds=(0.0, 1.0))


def duel(clients: wafl.Federation, gamma: float, norm: float, rounds: int, repeats: int) -> tuple[float, float]:
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


if __name__ == "__main__":
    main()
