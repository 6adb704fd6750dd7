"""Trials in stages: models are trained once and kept in a folder, and grids of rates are extended for everybody."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol, TypeVar

Row = TypeVar("Row")


class Kept(Protocol):
    """A model to train, and the name of the file that keeps what was found of it, without its ending."""

    @property
    def file(self) -> str: ...


J = TypeVar("J", bound=Kept)
Do = Callable[[Sequence[Any]], None]
"""Trains the models that no file keeps."""


def add_options(parser: argparse.ArgumentParser, folder: str) -> None:
    parser.add_argument("--results", type=Path, default=Path(folder), help="keep what is trained here")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--done", action="store_true", help="train nothing, and say what is missing")
    parser.add_argument("--output", type=Path, help="write the numbers here")


@contextmanager
def training(work: Callable[..., None], given: argparse.Namespace) -> Generator[Do]:
    """What trains models, in as many processes as asked; at the smallest, what is kept does not stay."""
    with tempfile.TemporaryDirectory() as scratch:
        given.results = Path(scratch) if given.smallest else given.results
        given.results.mkdir(parents=True, exist_ok=True)
        one = partial(work, smallest=given.smallest, device=given.device, folder=given.results)
        several = given.processes > 1
        with ProcessPoolExecutor(given.processes, get_context("spawn")) if several else nullcontext() as pool:

            def do(jobs: Sequence[Kept]) -> None:
                left = [job for job in dict.fromkeys(jobs) if not (given.results / f"{job.file}.json").exists()]
                if given.done:
                    for job in left:
                        print(f"not trained: {job.file}")
                else:
                    list(map(one, left) if pool is None else pool.map(one, left))

            yield do


def chosen_rates(
    rows: Sequence[Row],
    trial: Callable[[Row, float], J],
    judged: Callable[[J], float],
    trials: Mapping[str, Any],
    do: Do,
) -> tuple[list[float], dict[Row, float]]:
    """The rates that were tried, and each row's best; where one is at an edge, everybody tries half or twice of it."""
    rates: list[float] = list(trials["rates"])
    for left in reversed(range(trials["extensions"] + 1)):
        do([trial(row, rate) for row in rows for rate in rates])
        best = {row: max(rates, key=lambda rate, row=row: judged(trial(row, rate))) for row in rows}
        lower = [rates[0] / 2.0] if rates[0] in best.values() else []
        upper = [2.0 * rates[-1]] if rates[-1] in best.values() else []
        if not left or not (lower or upper):
            return rates, best
        rates = [*lower, *rates, *upper]
    raise ValueError(f"extensions={trials['extensions']} must be at least 0")
