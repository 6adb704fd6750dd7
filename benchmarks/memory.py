"""Memory for 10,000 clients: the peak of packing and training, against the size of the data, in memory and on disk.

    python -m benchmarks.memory [--smallest]

Clients arrive one after another, as from files. Resident memory is counted above what the imported libraries take.
The data on disk are one sparse file that is mapped into memory, so they need no room; ``--disk`` is their size in GiB.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import wafl
from benchmarks import options


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--disk", type=float, default=20.0, help="GiB of data on disk")
    given = options.read(parser, argv, clients=20, examples=10, features=8, disk=0.001)
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        on_disk(Path(folder), int(given.disk * 2**30), given.examples, given.features)
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


def on_disk(folder: Path, size: int, examples: int, features: int) -> None:
    """Train on a folder of this many bytes; it goes first, because a peak never falls."""
    rows = size // (4 * features) // examples * examples
    np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.float32, shape=(rows, features))
    offsets = np.arange(0, rows + 1, examples)
    np.save(folder / "y.npy", (np.arange(rows) % 10).astype(np.int8))
    np.save(folder / "offsets.npy", offsets)
    before, began = peak_bytes(), time.perf_counter()
    clients = wafl.Federation.from_folder(folder, test_fraction=0)
    packed = time.perf_counter() - began
    wafl.fit(
        wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=20, cohort=min(100, len(offsets) - 1), local_epochs=1
    )
    grown = peak_bytes() - before
    print(f"on disk {size / 2**30:.3g} GiB, {len(offsets) - 1} clients, packed and checked in {packed:.1f} s")
    print(f"peak while packing and training: {grown / 2**20:.0f} MiB, {grown / size:.3f} times the data")


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
