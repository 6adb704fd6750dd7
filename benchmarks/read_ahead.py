"""Reading ahead: rounds on data that lie on disk, with nothing in memory, and what the disk does meanwhile.

    .venv/bin/python benchmarks/read_ahead.py [--smallest]

Three ways take turns: *nothing* is announced, so each batch waits for its own rows; *this cohort* is announced when its
round begins; and *the next cohort too*, which wafl does. Before each turn the system forgets the file. *In memory* is
the same after all of it has been read. Seconds are on the wall, those of the median round.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

import options
import wafl
from wafl.data.mapped import Mapped
from wafl.engine.ahead import Ahead

METHODS = {"FedAvg": wafl.FedAvg(), "WAFL": wafl.WAFL(gamma=1.0)}
NOTHING, THIS, NEXT, MEMORY = "nothing", "this cohort", "the next cohort too", "in memory"


def main(argv: Sequence[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    parser.add_argument("--clients", type=int, default=8_000)
    parser.add_argument("--examples", type=int, default=80)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", help="where the file goes; the disk of the temporary folder by default")
    given = options.read(parser, argv, clients=12, examples=4, features=8, cohort=3, rounds=3, repeats=1)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "x.npy"
        write(path, given.clients * given.examples, given.features)
        size = path.stat().st_size
        print(f"{size / 2**30:.2g} GiB on disk, {size / given.clients * given.cohort / 2**20:.2g} MiB per round")
        table = Table("seconds per round", NOTHING, THIS, NEXT, MEMORY, f"{NEXT} / {THIS}", f"{THIS} / {NOTHING}")
        for name, method in METHODS.items():
            found: dict[str, list[float]] = {}
            for _ in range(given.repeats):
                for way in (NOTHING, THIS, NEXT, MEMORY):
                    with announcing(way):
                        found.setdefault(way, []).append(
                            seconds_of(path, given.examples, method, given.rounds, given.cohort, cold=way != MEMORY)
                        )
            ratios = (spread(found, NEXT, THIS), spread(found, THIS, NOTHING))
            table.add_row(name, *(f"{statistics.median(found[way]):.4f}" for way in found), *ratios)
        Console().print(table)


def write(path: Path, rows: int, features: int) -> None:
    draws = np.random.default_rng(0)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, features))
    for begin in range(0, rows, 4096):
        array[begin : begin + 4096] = draws.random((len(array[begin : begin + 4096]), features), dtype=np.float32)
    array.flush()


@contextlib.contextmanager
def announcing(way: str) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        if way in (NOTHING, THIS):
            stack.enter_context(mock.patch.object(Ahead, "expect"))
        if way == NOTHING:
            stack.enter_context(mock.patch.object(Mapped, "expect"))
        yield


def seconds_of(path: Path, examples: int, method: wafl.Method, rounds: int, cohort: int, cold: bool) -> float:
    x = np.load(path, mmap_mode="r")
    y, offsets = np.arange(len(x)) % 10, np.arange(0, len(x) + 1, examples)
    clients = wafl.Federation.from_offsets(x, y, offsets, test_fraction=0, num_classes=10)
    model, clock = wafl.models.mlr(clients), Clock(path if cold else None)
    wafl.fit(model, clients, method, rounds=rounds, cohort=cohort, local_epochs=2, callbacks=[clock])
    return statistics.median(after - before for before, after in zip(clock.at, clock.at[1:], strict=False))


class Clock(wafl.callbacks.Callback):
    """Looks at the clock after each round; after the first, the system forgets the file if it is given."""

    def __init__(self, path: Path | None) -> None:
        self.at: list[float] = []
        self._path = path

    def on_round(self, moment: wafl.callbacks.Moment) -> None:
        if self._path is not None and not self.at:
            forget(self._path)
        self.at.append(time.perf_counter())


def forget(path: Path) -> None:
    """Let the system forget what it has read of a file, where it can be asked to."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def spread(found: dict[str, list[float]], one: str, other: str) -> str:
    ratios = [here / there for here, there in zip(found[one], found[other], strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
