"""Rank methods on natural clients again: one size each, 12 values of it, and a temperature (``natural-2.toml``).

    python -m research leaderboard-2 --processes 16 --work FOLDER --tables FOLDER --output docs/evidence/natural-2.json
    python -m research leaderboard-2 --export FOLDER

The first command continues after an interruption. With ``--tables``, all data come from the files that ``--export``
wrote, so that no package with data is needed. Data sets that are missing are named and skipped. Until the registration
is committed, the draft in ``experiments/drafts`` is read, and only ``--smallest`` runs: results of a draft would not
count.
"""

from __future__ import annotations

import json
import math
import os
import platform
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks import options
from research import jobs
from research.jobs import Kept
from research.leaderboard import temperature
from research.leaderboard.scores import Model, Predicted, metrics, predicted
from research.leaderboard.second_page import CRITERIA, tables
from research.leaderboard.second_page import page as page
from research.leaderboard.sized import UNSEARCHED, Sized
from research.leaderboard.tasks import NaturalTask, tasks_of
from research.registration import registered_or_draft, require_registered
from research.stand_ins import write_tables
from wafl.base.describe import rounded
from wafl.base.errors import TrainingWarning
from wafl.base.files import write_whole

NAME = "natural-2"
COMMAND = "leaderboard-2"
Setting = tuple[float, float]
"""A size and a learning rate."""
Judged = dict[str, dict[str, Any]]
"""By track: the accuracy in percent, the log-loss at each temperature, and ``moved``, the distance from size 0."""
Tried = dict[Setting, Judged | None]
"""The settings that were tried, with means over the folds of tuning; None if a training diverged."""
Pair = tuple[str, str]
"""A task and a row."""


@dataclass(frozen=True)
class Board:
    """The registration: its content, its stamp, and its tasks and rows by name."""

    smallest: bool
    table: Mapping[str, Any]
    stamp: Mapping[str, str]
    tasks: Mapping[str, NaturalTask]
    rows: Mapping[str, Sized]


@cache
def read(smallest: bool) -> Board:
    """Return the registration, or the draft; at its smallest, a small part that is no evidence."""
    table, stamp = registered_or_draft(NAME)
    small = table.pop("smoke")
    if smallest:
        methods = {name: table["methods"][name] for name in small.pop("rows")}
        table |= {name: table[name] | small.pop(name) for name in ("common", "trials")} | small | {"methods": methods}
        stamp = {**stamp, "name": f"{stamp['name']}-smallest"}
    rows = {name: Sized(name, about, table["trials"]) for name, about in table["methods"].items()}
    return Board(smallest, table, stamp, tasks_of(table), rows)


def do(smallest: bool, job: Mapping[str, Any]) -> list[Any]:
    """Run a job: judge all sizes of a row at one rate on a fold of tuning, or test settings on a split."""
    torch.set_num_threads(1)
    board = read(smallest)
    task, row = board.tasks[job["task"]], board.rows[job["row"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        return _judge(task, row, job["rate"], job["fold"]) if "fold" in job else _test(task, row, job)


def _judge(task: NaturalTask, row: Sized, rate: float, fold: int) -> list[Judged | None]:
    """Return the judgment of each size at a learning rate, by the clients that a fold leaves out."""
    (seen, judges), seed = task.tuning[fold], task.seed + fold
    sizes = row.sizes if 0.0 in row.sizes else [*row.sizes, 0.0]
    runs = row.fit(task, seen, [(size, rate) for size in sizes], seed)
    made = [None if run is None else predicted(Model.of(run), task, judges, seed) for run in runs]
    still = made[sizes.index(0.0)]
    return [None if each is None else _judged(each, still) for each in made[: len(row.sizes)]]


def _judged(made: Predicted, still: Predicted | None) -> Judged:
    """Return what counts of a model's predictions; ``still`` are the predictions of size 0 at the same rate."""
    result: Judged = {}
    for track, some in made.logs.items():
        losses = [fmean(each) for each in zip(*(temperature.losses_at(logs, made.y) for logs in some), strict=True)]
        right = fmean(float((logs.argmax(1) == made.y).double().mean()) for logs in some)
        gaps = [] if still is None else [
            float((one.double().exp() - other.double().exp()).abs().sum(1).mean()) / 2.0
            for one, other in zip(some, still.logs[track], strict=True)
        ]  # fmt: skip
        moved = fmean(gaps) if gaps else 1.0
        result[track] = {"accuracy": 100.0 * right, "moved": moved, "losses": [rounded(each, 7) for each in losses]}
    return result


def _test(task: NaturalTask, row: Sized, job: Mapping[str, Any]) -> list[dict[str, Any] | None]:
    """Return the scores of each setting by track; its temperatures were fitted in tuning."""
    seen, unseen = task.split(job["seed"])
    runs = row.fit(task, seen, [(size, rate) for size, rate, _ in job["settings"]], job["seed"])
    results: list[dict[str, Any] | None] = []
    for run, (_, _, temperatures) in zip(runs, job["settings"], strict=True):
        if run is None:
            results.append(None)
            continue
        made = predicted(Model.of(run), task, unseen, job["seed"])
        plain, result = made.mean(metrics), dict[str, Any]()
        for track, scores in plain.items():
            at = temperatures[track]
            losses = [metrics(temperature.scaled(logs, at), made.y, made.who)["loss"] for logs in made.logs[track]]
            result[track] = {name: rounded(value, 6) for name, value in {**scores, "scaled": fmean(losses)}.items()}
        results.append(result)
    return results


def loss_of(judged: Judged | None, track: str, criterion: str) -> tuple[float, float]:
    """Return what a choice minimizes; the second number decides ties in accuracy."""
    if judged is None or not all(map(math.isfinite, judged[track]["losses"])):
        return math.inf, math.inf
    losses = judged[track]["losses"]
    plain = losses[temperature.TEMPERATURES.index(1.0)]
    if criterion == "accuracy":
        return -judged[track]["accuracy"], plain
    return (temperature.best(losses)[1] if criterion == "scaled" else plain), 0.0


def choose(tried: Tried, track: str, criterion: str) -> Setting:
    """Return the best setting; among equals the smallest size, then the smallest rate."""
    return min(sorted(tried), key=lambda setting: loss_of(tried[setting], track, criterion))


def next_rates(
    tried: Collection[float], best: Collection[float], trials: Mapping[str, Any]
) -> tuple[list[float], bool]:
    """Return the rates to try next, and whether they are the last.

    While an end of the coarse grid is best, the next coarse rate beyond it is tried; then the rates between.
    """
    coarse, step = trials["rates"], trials["step"]
    most = step ** trials["extensions"]
    low, high = min(tried), max(tried)
    beyond = [low / step] if low in best and low > 1.001 * min(coarse) / most else []
    beyond += [high * step] if high in best and high < 0.999 * max(coarse) * most else []
    half = math.sqrt(step)
    return (beyond, False) if beyond else (sorted({rate * by for rate in best for by in (1.0 / half, half)}), True)


def _mean(folds: Sequence[Judged | None]) -> Judged | None:
    whole = [each for each in folds if each is not None]
    if len(whole) < len(folds):
        return None
    return {
        track: {
            name: [fmean(each) for each in zip(*values, strict=True)] if name == "losses" else fmean(values)
            for name in whole[0][track]
            if (values := [each[track][name] for each in whole])
        }
        for track in whole[0]
    }


def tuned(board: Board, here: Sequence[str], kept: Kept) -> dict[Pair, Tried]:
    """Return the settings that were tried by every row on every task, where all of them are finished."""
    trials, tracks = board.table["trials"], board.table["tracks"]
    tried: dict[Pair, Tried] = {(task, row): {} for task in here for row in board.rows}
    asked = {pair: list[float](trials["rates"]) for pair in tried}
    last, unfinished = set[Pair](), set[Pair]()
    while asked:
        named = {
            f"{task}_{row}_rate-{rate:g}-{fold}": {"task": task, "row": row, "rate": rate, "fold": fold}
            for (task, row), rates in asked.items()
            for rate in rates
            for fold in range(len(board.tasks[task].tuning))
        }
        made, more = kept.run(partial(do, board.smallest), named), dict[Pair, list[float]]()
        for (task, row), rates in asked.items():
            pair, folds = (task, row), range(len(board.tasks[task].tuning))
            for rate in rates:
                names = [f"{task}_{row}_rate-{rate:g}-{fold}" for fold in folds]
                if not made.keys() >= {*names}:
                    unfinished.add(pair)
                    break
                judged = zip(*(made[name] for name in names), strict=True)
                tried[pair] |= {
                    (size, rate): _mean(each) for size, each in zip(board.rows[row].sizes, judged, strict=True)
                }
            if pair not in last | unfinished:
                best = {choose(tried[pair], track, by)[1] for track in tracks for by in CRITERIA}
                more[pair], final = next_rates({rate for _, rate in tried[pair]}, best, trials)
                last |= {pair} if final else set()
        asked = more
    return {pair: results for pair, results in tried.items() if pair not in unfinished}


def _choice(board: Board, pair: Pair, tried: Tried, track: str, criterion: str) -> dict[str, Any]:
    """Return a chosen setting with its temperature, and what it shows about the search."""
    size, rate = choose(tried, track, criterion)
    judged, rates = tried[size, rate], [rate for _, rate in tried]
    moved = None if judged is None else rounded(judged[track]["moved"], 4)
    largest = board.rows[pair[1]].sizes[-1]
    return {
        "size": size,
        "learning_rate": rate,
        "temperature": 1.0 if judged is None else rounded(temperature.best(judged[track]["losses"])[0], 4),
        "moved": moved,
        "off": size == 0.0 or (moved is not None and moved < board.table["verdict"]["off"]),
        "top": size == largest and largest != UNSEARCHED,
        "end": rate in (min(rates), max(rates)),
    }


def second(board: Board, here: Sequence[str], kept: Kept) -> dict[str, dict[str, Any]]:
    """Return, by task and row, the choices and the scores, split by split; unfinished rows are left out."""
    tracks, seeds = board.table["tracks"], board.table["seeds_test"]
    chosen = {
        pair: {track: {by: _choice(board, pair, tried, track, by) for by in CRITERIA} for track in tracks}
        for pair, tried in tuned(board, here, kept).items()
    }
    settings: dict[Pair, list[Any]] = {}
    for pair, choices in chosen.items():
        found = {(each["size"], each["learning_rate"]) for of in choices.values() for each in of.values()}
        settings[pair] = [(*setting, dict.fromkeys(tracks, 1.0)) for setting in sorted(found)]
        for track, of in choices.items():
            for each in of.values():
                settings[pair][_place(settings[pair], each)][2][track] = each["temperature"]
    named = {
        f"{task}_{row}_test-{seed}": {"task": task, "row": row, "seed": seed, "settings": settings[task, row]}
        for task, row in chosen
        for seed in seeds
    }
    made, results = kept.run(partial(do, board.smallest), named), {task: dict[str, Any]() for task in here}
    for (task, row), choices in chosen.items():
        tested = [made[name] for seed in seeds if (name := f"{task}_{row}_test-{seed}") in made]
        if len(tested) == len(seeds):
            splits = [_split(every, settings[task, row], choices) for every in tested]
            results[task][row] = {"chosen": choices, "splits": splits}
    return results


def _split(every: Sequence[Any], settings: Sequence[Any], choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of the choices of each track, from the scores of all settings; None if one diverged."""
    scores = {track: {by: every[_place(settings, each)] for by, each in of.items()} for track, of in choices.items()}
    return {track: {by: each and each[track] for by, each in of.items()} for track, of in scores.items()}


def _place(settings: Sequence[Any], choice: Mapping[str, Any]) -> int:
    """Return the index of a choice among settings."""
    return [each[:2] for each in settings].index((choice["size"], choice["learning_rate"]))


def numbers_of(board: Board, data: Sequence[str], kept: Kept) -> dict[str, Any]:
    """Return the numbers of the tables, on these data sets or all."""
    absent = {name: why for name in data or board.tasks if (why := board.tasks[name].missing) is not None}
    for name, why in absent.items():
        kept.say(f"{name}: left out, as {why} is not here")
    here = [name for name in data or board.tasks if name not in absent]
    results = second(board, here, kept)
    left = {name: [row for row in board.rows if row not in results[name]] for name in here}
    first = {name: board.tasks[name].split(board.table["seeds_test"][0]) for name in here}
    return {
        "registered": board.stamp,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "absent": absent,
        "unfinished": {name: rows for name, rows in left.items() if rows},
        "clients": {name: [each.num_clients for each in split] for name, split in first.items()},
        "results": {name: rows for name, rows in results.items() if rows},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    jobs.add_options(parser, COMMAND)
    parser.add_argument("--output", type=Path, help="write the numbers to this file")
    parser.add_argument("--data", nargs="+", default=[], help="some of the data sets; by default all")
    parser.add_argument("--tables", type=Path, help="take all data from the files in this folder")
    parser.add_argument("--export", type=Path, help="only write the data to files in this folder")
    given = options.read(parser, argv)
    if given.export is not None:
        write_tables(read(False).tasks.values(), given.export)
        return
    if given.tables is not None:
        os.environ["WAFL_DATA"] = str(given.tables.absolute())  # other processes inherit it
    if not given.smallest:
        require_registered(NAME)
    board = read(given.smallest)
    if unknown := [name for name in given.data if name not in board.tasks]:
        parser.error(f"unknown data {unknown[0]!r}: use one of {', '.join(board.tasks)}")
    numbers = numbers_of(board, given.data, jobs.kept(given, board.stamp))
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(given.output, f"{json.dumps(numbers, indent=1)}\n".encode())
    print("\n\n".join(tables(numbers, board.table).values()))


if __name__ == "__main__":
    main()
