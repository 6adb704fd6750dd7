"""Memory for 10,000 clients: the peak of packing and training, against the size of the data.

    .venv/bin/python benchmarks/memory.py [--smallest]

Clients arrive one after another, as from files. Resident memory is counted above what the imported libraries take.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

import options
import wafl


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--features", type=int, default=784)
    given = options.read(parser, argv, clients=20, examples=10, features=8)
    warm_up()
    before = peak_bytes()
    clients = wafl.Federation.from_arrays(make(given.clients, given.examples, given.features))
    packed = peak_bytes()
    data = clients.train.x.nbytes + clients.test.x.nbytes + clients.train.y.nbytes + clients.test.y.nbytes
    model, cohort = wafl.models.mlr(clients), min(100, given.clients)
    for method in (wafl.WAFL(gamma=1.0), wafl.FedAvg(), wafl.DRFA()):
        wafl.fit(model, clients, method, rounds=3, cohort=cohort, local_epochs=1, learning_rate=0.01)
    print(f"data {data / 2**20:.0f} MiB, {given.clients} clients")
    for name, peak in (("packing", packed), ("packing and training", peak_bytes())):
        print(f"peak while {name}: {(peak - before) / 2**20:.0f} MiB, {(peak - before) / data:.2f} times the data")


def make(clients: int, examples: int, features: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    generator = np.random.default_rng(0)
    for _ in range(clients):
        yield generator.random((examples, features), dtype=np.float32), generator.integers(0, 10, examples)


def warm_up() -> None:
    """Import and touch what every run touches once."""
    clients = wafl.Federation.from_arrays(make(10, 20, 8))
    wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(), rounds=1, local_epochs=1)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
