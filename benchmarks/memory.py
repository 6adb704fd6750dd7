"""Memory: the peak of packing and training, against what data, updates and the clients' states need.

    python -m benchmarks.memory [--smallest] [--part packing million resnet]

``packing``: 10,000 clients that arrive one after another, as from files. Resident memory excludes the
imported libraries. The data on disk are one sparse file that is mapped into memory, so they need no room;
``--disk`` is their size in GiB.

``million`` and ``resnet`` list the functions that made the tensors at the peak of ``wafl.fit``: for a linear
model and ``--many`` clients with 20 examples of 32 features, cohort 50; and for SCAFFOLD with ``--resnets`` ResNet-18
clients on a GPU, all of them in each round, or on the CPU if there is none. *Need* is the data, the vectors that the
cohort sends, and what each client keeps. The rest of the reserved memory is recordings, workspaces of
libraries, and gaps. Last, ``resnet`` prints the memory that stays allocated after each of three trainings.
"""

from __future__ import annotations

import argparse
import gc
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

import wafl
from benchmarks import million, options
from benchmarks.contest.shared.nets import resnet18
from benchmarks.live import Live

CAUSES = {
    "data": ("data/examples.py:to", "data/examples.py:num_examples"),
    "what clients keep": ("train/lanes/lanes.py:_remember",),
    "what they send": ("train/lanes/lanes.py:_move", "train/lanes/lanes.py:add"),
    "lanes, and their recordings": ("train/lanes/",),
    "server": ("train/loop", "train/server", "train/replies", "train/checks", "parts/", "servers/", "weights/"),
}
"""Which functions make what; local steps make the rest."""
HERE = "cuda" if torch.cuda.is_available() else "cpu"


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--disk", type=float, default=20.0, help="GiB of data on disk")
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--resnets", type=int, default=100)
    parser.add_argument("--cohort", type=int, help="ResNet-18 clients per round, by default all")
    parser.add_argument("--chunk", type=int, help="ResNet-18 clients that are computed together")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    smallest = {"clients": 20, "examples": 10, "features": 8, "disk": 0.001, "many": 100, "resnets": 2}
    given = options.read(parser, argv, **smallest)
    for part in given.part:
        PARTS[part](given)


def packing(given: argparse.Namespace) -> None:
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


def many(given: argparse.Namespace) -> None:
    """Say what is alive at the peak of training very many clients, by method."""
    warm_up()
    before, (x, y) = peak_bytes(), million.make(given.many)
    for method in (wafl.FedAvg(), wafl.DRFA(), wafl.SCAFFOLD()):
        clients = million.pack(x, y, given.many)
        need = show(wafl.models.mlr(clients), clients, method, min(million.COHORT, given.many), "cpu")
        resident = peak_bytes() - before
        print(f"resident so far: {resident / 2**20:,.0f} MiB above the imports, {resident / need:.3f} of the need")


def resnet(given: argparse.Namespace) -> None:
    """Say what is alive at the peak of SCAFFOLD with large networks, and what a training leaves behind."""
    size = 4 if given.smallest else 32
    pairs = [(torch.rand(size, 3, 32, 32), torch.arange(size) % 10) for _ in range(given.resnets)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=10)
    model = resnet18(10, 2 if given.smallest else 64)
    show(model, clients, wafl.SCAFFOLD(), given.cohort or given.resnets, HERE, given.chunk)
    for number in range(3 if HERE == "cuda" else 0):
        wafl.fit(model, clients, wafl.FedAvg(), rounds=2, cohort=2, local_steps=2, batch_size=32, device=HERE)
        gc.collect()
        torch.cuda.empty_cache()
        left = [each() / 2**20 for each in (torch.cuda.memory_allocated, torch.cuda.memory_reserved)]
        print(f"after training {number + 1}: {left[0]:.0f} MiB allocated, {left[1]:.0f} MiB reserved")


def followed(
    model: nn.Module, clients: wafl.Federation, method: wafl.Method, cohort: int, device: str, chunk: int | None = None
) -> tuple[Live, int, int]:
    """Train three rounds; returns what was alive, the bytes of the data and those that are needed."""
    size = 4 * sum(value.numel() for value in model.parameters())
    keeps = method.local.initial_memory(torch.zeros(1)) is not None
    data = sum(part.nbytes for part in (clients.train.x, clients.train.y, clients.test.x, clients.test.y))
    kept = size * min(3 * cohort, clients.num_clients) if keeps else 0
    need = data + size * cohort * (1 + len(method.local.sends)) + kept
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with Live() as live:
        wafl.fit(
            model, clients, method, rounds=3, cohort=cohort, local_steps=2, batch_size=32, learning_rate=0.01,
            device=device, chunk_size=chunk, workers=1,
        )  # fmt: skip
    return live, data, need


def alive_to_need(
    model: nn.Module, clients: wafl.Federation, method: wafl.Method, cohort: int, chunk: int | None = None
) -> float:
    """Return what is alive at the peak of a training on a CPU, data included, over what is needed."""
    live, data, need = followed(model, clients, method, cohort, "cpu", chunk)
    return (live.peak + data) / need


def show(
    model: nn.Module, clients: wafl.Federation, method: wafl.Method, cohort: int, device: str, chunk: int | None = None
) -> int:
    """Train three rounds, print what is alive at the peak, and return the bytes that are needed."""
    live, data, need = followed(model, clients, method, cohort, device, chunk)
    made = Counter({"data": data} if device == "cpu" else {})  # which a GPU has copies of
    for maker, count in live.at_peak.items():
        if maker != "before":
            cause = (name for name, places in CAUSES.items() if maker.startswith(places))
            made[next(cause, "local steps")] += count
    table = Table(f"{clients.num_clients:,} clients, cohort {cohort}, {method.name}, {device}", "MiB", "of the need")
    rows = [*made.most_common(), ("alive at the peak", sum(made.values())), ("need", need)]
    if device == "cuda":
        rows.insert(-1, ("allocated at most", torch.cuda.max_memory_allocated()))
        rows.insert(-1, ("reserved at most", torch.cuda.max_memory_reserved()))
    for name, count in rows:
        table.add_row(name, f"{count / 2**20:,.1f}", f"{count / need:.3f}")
    Console(width=120).print(table)
    return need


PARTS = {"packing": packing, "million": many, "resnet": resnet}

if __name__ == "__main__":
    main()
