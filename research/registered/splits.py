"""The common parts of experiments on splits of clients: their jobs, examples by client, and statistics over splits."""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import wafl
from research import jobs
from research.experiment import ROOT
from research.markdown import first_shown
from research.markdown import table as table
from research.registration import registered
from research.significance import holm as adjusted
from research.significance import resampled
from research.stand_ins import read_tables
from wafl.base.errors import TrainingWarning

Array = NDArray[Any]
Pair = tuple[Array, Array]
"""The examples of one client, a row each, and their labels."""
Point = tuple[float, float]
"""A clean error, and a certified one."""
Rows = list[dict[str, Any]]
Job = Mapping[str, Any]


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of an experiment whose tasks are data sets, and whose jobs are kept."""
    jobs.add_options(parser, name)
    parser.add_argument("--output", type=Path, help="write the numbers to this file")
    parser.add_argument("--only", nargs="+", help="some of the registered tasks; by default all of them")
    parser.add_argument("--tables", type=Path, help="take natural data from files NAME.npz (x, y, who) in this folder")


def rows_of(
    work: Callable[..., Rows], asked: Sequence[Job], stamp: Mapping[str, str], given: argparse.Namespace
) -> Rows:
    """Return the rows of all jobs, the first of which start first, and write them to ``--output``."""
    if given.smallest:
        stamp = {"name": f"{stamp['name']}-smallest"}
    named = {"-".join(str(value) for value in job.values() if isinstance(value, str | int)): job for job in asked}
    results = jobs.kept(given, stamp).run(partial(_done, work, given.tables), named)
    rows = [row for part in results.values() for row in part]
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in rows)
        given.output.write_text(f'{{"registered": {json.dumps(stamp)}, "rows": [\n{lines}\n]}}\n')
    return rows


def _done(work: Callable[..., Rows], tables: Path | None, job: Job) -> Rows:
    torch.set_num_threads(1)
    if tables is not None:
        read_tables(tables)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        return work(**job)


def reported(name: str, report: Callable[[Rows, Mapping[str, Any]], str]) -> dict[str, str]:
    """Return the table of a page, from the rows in docs/evidence/NAME.json."""
    numbers = json.loads((ROOT / "docs" / "evidence" / f"{name}.json").read_bytes())
    return {name: first_shown(report(numbers["rows"], registered(name)[0]))}


def by_client(clients: wafl.Federation) -> list[Pair]:
    """Return all examples of every client, for training or not."""
    parts = [(*clients.train.of(client), *clients.test.of(client)) for client in range(clients.num_clients)]
    return [
        (torch.cat([x, x_test]).flatten(1).double().numpy(), torch.cat([y, y_test]).numpy())
        for x, y, x_test, y_test in parts
    ]


def people(name: str, share: float, split: int) -> tuple[list[Pair], list[Pair], int]:
    """Return the training clients, the others, and the number of classes."""
    everyone = wafl.load_dataset(name).partition(by_group=True)
    seen, unseen = everyone.hold_out(share, seed=split)
    return by_client(seen), by_client(unseen), everyone.num_outputs


def prepared(train: Sequence[Pair], test: Sequence[Pair], *, scale: bool) -> tuple[list[Pair], list[Pair]]:
    """Subtract the mean of the training examples and, with ``scale``, divide by the deviation of each feature."""
    x = np.concatenate([x for x, _ in train])
    deviation = x.std(0) if scale else np.ones(x.shape[1])
    unit = np.where(deviation > 0.0, deviation, 1.0)
    first, second = ([((x_own - x.mean(0)) / unit, y) for x_own, y in side] for side in (train, test))
    return first, second


def federation(pairs: Sequence[Pair], classes: int) -> wafl.Federation:
    """Return clients that train on all their examples."""
    return wafl.Federation.from_arrays(
        [(x.astype(np.float32), y) for x, y in pairs], test_fraction=0.0, num_classes=classes
    )


def joined(pairs: Sequence[Pair]) -> Pair:
    """Return the examples of all clients together."""
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def curvature(pairs: Sequence[Pair]) -> float:
    """Return the largest curvature of a linear model's cross-entropy.

    It is half the largest eigenvalue of ``E[(x, 1) (x, 1)^T]``.
    """
    x, _ = joined(pairs)
    both = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    return float(np.linalg.norm(both, 2)) ** 2 / len(x) / 2.0


def to_optimum(bent: float, rounds: int) -> dict[str, Any]:
    """Return a schedule of one step per round of all clients on all examples; the server also has momentum.

    The learning rate is 1 over the curvature, and falls to zero in the second half.
    """
    steps: dict[str, Any] = {"rounds": rounds, "local_steps": 1, "batch_size": None}
    return {**steps, "learning_rate": lambda number: falling(number / rounds) / bent}


def falling(part: float) -> float:
    """Return the learning rate, as a share of the first, after this part of the rounds."""
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
        """Format the gap, in bold if it is significant."""
        return f"**{self}**" if self.p < level else str(self)


def corrected(values: Sequence[float], ratio: float) -> Gap:
    """Apply Nadeau and Bengio's corrected t, with ``(1 / n + ratio) s^2`` as the variance of a mean over n splits.

    ``ratio`` is the number of clients that test over clients that train; 0 where splits share no examples.

    >>> str(corrected([1.0, 2.0, 3.0], 0.0))
    '+2.00 ± 2.48'
    """
    if len(values) < 2:
        return Gap(fmean(values), math.inf, 1.0)
    mean, p = resampled(values, ratio)
    return Gap(mean.value, mean.half or 0.0, p)


def holm(gaps: Sequence[Gap]) -> list[Gap]:
    """Return the gaps with p-values adjusted for their number, by Holm's procedure."""
    return [replace(gap, p=p) for gap, p in zip(gaps, adjusted([gap.p for gap in gaps]), strict=True)]
