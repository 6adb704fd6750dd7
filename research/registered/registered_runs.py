"""What registered experiments share: jobs that are done once, examples by client, and statistics over splits."""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import wafl
from research.exploratory.rival_settings import read_tables
from research.markdown import table as table
from research.significance import holm as adjusted
from research.significance import resampled
from wafl.base.errors import TrainingWarning
from wafl.base.files import write_whole

Array = NDArray[Any]
Pair = tuple[Array, Array]
"""The examples of one client, a row each, and their labels."""
Point = tuple[float, float]
"""A clean error, and a certified one."""
Rows = list[dict[str, Any]]
Job = Mapping[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="some of the registered tasks; by default all of them")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, help="keep what is done in this folder, and do not do it again")
    parser.add_argument("--tables", type=Path, help="take natural data from files NAME.npz (x, y, who) in this folder")
    parser.add_argument("--output", type=Path, help="write all rows, with the digest of the registration, to this file")
    parser.add_argument("--read", type=Path, help="train nothing: judge the rows that --output wrote")


def done(work: Callable[..., Rows], jobs: Sequence[Job], stamp: Mapping[str, str], given: argparse.Namespace) -> Rows:
    """The rows of all jobs, the first of which are begun first; or those of a file."""
    if given.smallest:
        stamp = {"name": f"{stamp['name']}-smallest"}
    if given.read is not None:
        content = json.loads(given.read.read_bytes())
        if content["registered"] != stamp:
            raise SystemExit(f"{given.read} was made under another registration: {content['registered']}")
        return content["rows"]
    if given.results is not None:
        given.results.mkdir(parents=True, exist_ok=True)
    shared = work, stamp, given.results, given.tables
    if given.processes > 1:
        with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
            parts = [future.result() for future in [pool.submit(_kept, job, *shared) for job in jobs]]
    else:
        parts = [_kept(job, *shared) for job in jobs]
    rows = [row for part in parts for row in part]
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in rows)
        given.output.write_text(f'{{"registered": {json.dumps(stamp)}, "rows": [\n{lines}\n]}}\n')
    return rows


def _kept(
    job: Job, work: Callable[..., Rows], stamp: Mapping[str, str], folder: Path | None, tables: Path | None
) -> Rows:
    """The rows of a job; what was done under the same registration is not done again."""
    name = "-".join(str(value) for value in job.values() if isinstance(value, str | int))
    file = None if folder is None else folder / f"{stamp['name']}-{name}.json"
    if file is not None and file.exists() and (content := json.loads(file.read_bytes()))["registered"] == stamp:
        return content["rows"]
    torch.set_num_threads(1)
    if tables is not None:
        read_tables(tables)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        rows = work(**job)
    if file is not None:
        write_whole(file, json.dumps({"registered": stamp, "rows": rows}).encode())
    return rows


def by_client(clients: wafl.Federation) -> list[Pair]:
    """All examples of every client, for training or not."""
    parts = [(*clients.train.of(client), *clients.test.of(client)) for client in range(clients.num_clients)]
    return [
        (torch.cat([x, x_test]).flatten(1).double().numpy(), torch.cat([y, y_test]).numpy())
        for x, y, x_test, y_test in parts
    ]


def people(name: str, share: float, split: int) -> tuple[list[Pair], list[Pair], int]:
    """Those who train, those who never do, and the number of classes."""
    everyone = wafl.load_dataset(name).partition(by_group=True)
    seen, unseen = everyone.hold_out(share, seed=split)
    return by_client(seen), by_client(unseen), everyone.num_outputs


def prepared(train: Sequence[Pair], test: Sequence[Pair], *, scale: bool) -> tuple[list[Pair], list[Pair]]:
    """Both sides less the mean of the training examples and, if asked, over the deviation of each feature."""
    x = np.concatenate([x for x, _ in train])
    deviation = x.std(0) if scale else np.ones(x.shape[1])
    unit = np.where(deviation > 0.0, deviation, 1.0)
    first, second = ([((x_own - x.mean(0)) / unit, y) for x_own, y in side] for side in (train, test))
    return first, second


def federation(pairs: Sequence[Pair], classes: int) -> wafl.Federation:
    """Clients all of whose examples train."""
    return wafl.Federation.from_arrays(
        [(x.astype(np.float32), y) for x, y in pairs], test_fraction=0.0, num_classes=classes
    )


def joined(pairs: Sequence[Pair]) -> Pair:
    """The examples of all clients together."""
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def curvature(pairs: Sequence[Pair]) -> float:
    """How bent the cross-entropy of a linear model can be: half the largest eigenvalue of ``E[(x, 1) (x, 1)^T]``."""
    x, _ = joined(pairs)
    both = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return float(np.linalg.norm(both, 2)) ** 2 / len(x) / 2.0


def to_optimum(bent: float, rounds: int) -> dict[str, Any]:
    """A schedule of one step per round of all clients on everything; the server has momentum besides.

    The learning rate is 1 over the curvature, and falls to zero in the second half.
    """
    steps: dict[str, Any] = {"rounds": rounds, "local_steps": 1, "batch_size": None}
    return {**steps, "learning_rate": lambda number: falling(number / rounds) / bent}


def falling(part: float) -> float:
    """The learning rate, as a share of the first, after this part of the rounds."""
    return min(1.0, 2.0 * (1.0 - part))


@dataclass(frozen=True)
class Gap:
    """A mean difference over splits, half of its 95% interval, and the p-value of no difference."""

    mean: float
    half: float
    p: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.half:.2f}"

    def marked(self, level: float) -> str:
        return f"**{self}**" if self.p < level else str(self)


def corrected(values: Sequence[float], ratio: float) -> Gap:
    """Nadeau and Bengio's corrected t: the variance of a mean over n splits is taken to be ``(1 / n + ratio) s^2``.

    ``ratio`` is that of clients that test to clients that train; 0 where splits share no examples.

    >>> str(corrected([1.0, 2.0, 3.0], 0.0))
    '+2.00 ± 2.48'
    """
    if len(values) < 2:
        return Gap(fmean(values), math.inf, 1.0)
    mean, p = resampled(values, ratio)
    return Gap(mean.value, mean.half or 0.0, p)


def holm(gaps: Sequence[Gap]) -> list[Gap]:
    """The same with p-values adjusted for their number, by Holm's procedure."""
    return [replace(gap, p=p) for gap, p in zip(gaps, adjusted([gap.p for gap in gaps]), strict=True)]
