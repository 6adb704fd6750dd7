"""The leaderboard: every row is tuned with equal trials on the same clients, on two tracks, and tested on others.

What is made depends on the registration alone. It is kept in a working folder, so that the same command goes on after
an interruption, and several machines may share the data sets.
"""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from research.jobs import Kept, Say
from research.leaderboard.rows import MethodRow, Row, row_of
from research.leaderboard.scores import Scores, scores
from research.leaderboard.tasks import NaturalTask, tasks_of
from research.registration import registered
from wafl.base.describe import describe, rounded
from wafl.base.errors import TrainingWarning
from wafl.studies.folder import provenance
from wafl.tuning.space import Setting

Job = tuple[str, str, str]
"""A task, a row, and the part to compute."""
Tried = list[tuple[Setting, Scores | None]]
"""Settings, and their scores on clients that were held out of tuning; None if a training diverged."""


@dataclass(frozen=True)
class Board:
    """The registration: tasks and rows, by name, and its digest."""

    scale: str
    table: Mapping[str, Any]
    stamp: Mapping[str, str]
    tasks: Mapping[str, NaturalTask]
    rows: Mapping[str, Row]

    def on(self, task: str) -> list[str]:
        """Return the rows of a task."""
        return [name for name, row in self.rows.items() if row.fits(self.tasks[task])]

    def best(self, task: str, track: str, tried: Tried) -> Setting:
        """Return the best setting on a track; among ties, the one with the smaller loss."""
        by_loss = self.tasks[task].about["metric"] == "loss"

        def value(scored: Scores | None) -> tuple[float, float]:
            if scored is None or not math.isfinite(scored[track]["loss"]):
                return -math.inf, -math.inf
            return 0.0 if by_loss else scored[track]["accuracy"], -scored[track]["loss"]

        return max(tried, key=lambda each: value(each[1]))[0]


@cache
def read(scale: str) -> Board:
    """Return the registration; at the scale ``smoke``, a small part of it that is no evidence."""
    table, stamp = registered("natural")
    if scale not in ("full", "smoke"):
        raise ValueError(f"scale={scale!r} must be full or smoke: the leaderboard has no other")
    little = table["smoke"] if scale == "smoke" else {}
    parts = {name: table[name] | little.get(name, {}) for name in ("trials", "common")}
    table |= {**parts, "seeds_test": little.get("seeds_test", table["seeds_test"])}
    rows, tasks = table["methods"] | table["references"], tasks_of(table)
    asked = {name: row_of(name, rows[name], table["trials"]) for name in little.get("rows", rows)}
    return Board(scale, table, stamp, {name: tasks[name] for name in little.get("tasks", tasks)}, asked)


@dataclass(frozen=True)
class Work:
    """The jobs of a board, and their stored results."""

    board: Board
    kept: Kept

    def __call__(self, jobs: Mapping[Job, Any]) -> dict[Job, Any]:
        """Return the results of jobs; unfinished ones are omitted if nothing may run."""
        by_name = {"_".join(job): (job, given) for job, given in jobs.items()}
        left = [job for name, (job, _) in by_name.items() if not self.kept.has(name)]
        if self.kept.processes and left:
            self.kept.say(f"{len(left)} jobs on {', '.join(dict.fromkeys(task for task, _, _ in left))}")
        made = self.kept.run(partial(do, self.board.scale), by_name)
        return {by_name[name][0]: result for name, result in made.items()}

    def trials(self, jobs: Mapping[Job, Sequence[Setting]]) -> dict[Job, list[Scores | None]]:
        """Return the scores of settings, by job: means over the folds of tuning."""
        given, folds = dict[Job, Any](), dict[Job, list[Job]]()
        for job, settings in jobs.items():
            task = self.board.tasks[job[0]]
            folds[job] = [(*job[:2], f"{job[2]}-{fold}") for fold in range(len(task.tuning))]
            for fold, each in enumerate(folds[job]):
                given[each] = {"fold": fold, "seed": task.seed + fold, "settings": settings}
        made = self(given)
        whole = {job: [made[each] for each in parts] for job, parts in folds.items() if made.keys() >= {*parts}}
        return {job: [_mean(each) for each in zip(*parts, strict=True)] for job, parts in whole.items()}


def do(scale: str, work: tuple[Job, Mapping[str, Any]]) -> list[Scores | None]:
    """Run a job: score settings on the clients that a fold of tuning, or a split, leaves out."""
    torch.set_num_threads(1)
    (name, other, _), given = work
    task, row, seed = read(scale).tasks[name], read(scale).rows[other], given["seed"]
    seen, others = task.tuning[given["fold"]] if "fold" in given else task.split(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        models = row.fit(task, seen, others, given["settings"], seed)
        return [None if model is None else scores(model, task, others, seed) for model in models]


def _mean(folds: Sequence[Scores | None]) -> Scores | None:
    whole = [each for each in folds if each is not None]
    if len(whole) < len(folds):
        return None
    return {
        track: {name: fmean(each[track][name] for each in whole) for name in names} for track, names in whole[0].items()
    }


def leaderboard(data: Sequence[str], scale: str, work: Path, processes: int = 1, say: Say = print) -> dict[str, Any]:
    """Return the numbers of the tables, on these data sets or all; with no processes, only from ``work``."""
    board = read(scale)
    for name in data:
        if name not in board.tasks:
            raise ValueError(f"unknown data {name!r}: use one of {', '.join(board.tasks)}")
    absent = {name: why for name in data or board.tasks if (why := board.tasks[name].missing) is not None}
    for name, why in absent.items():
        say(f"{name}: left out, as {why} is not here (`wafl data list`)")
    here = [name for name in data or board.tasks if name not in absent]
    numbers = _made(board, here, Work(board, Kept(work / scale, board.stamp, processes, say)))
    left = {name: [row for row in board.on(name) if row not in numbers[name]] for name in here}
    first = {name: board.tasks[name].split(board.table["seeds_test"][0]) for name in here}
    return {
        "registered": board.stamp,
        "scale": scale,
        **{name: value for name, value in provenance().items() if name in ("python", "packages", "machine")},
        "absent": absent,
        "unfinished": {name: rows for name, rows in left.items() if rows},
        "clients": {name: [each.num_clients for each in split] for name, split in first.items()},
        "results": {name: describe(rows) for name, rows in numbers.items() if rows},
    }


def _made(board: Board, here: Sequence[str], work: Work) -> dict[str, dict[str, Any]]:
    """Return, by task and row, the choice of each track, and its scores, split by split."""
    tracks, seeds, tried = board.table["tracks"], board.table["seeds_test"], _first(board, here, work)
    best = {(pair, track): board.best(pair[0], track, results) for pair, results in tried.items() for track in tracks}
    second = {
        _options(pair, setting): settings
        for (pair, _), setting in best.items()
        if (settings := board.rows[pair[1]].second(board.tasks[pair[0]], setting))
    }
    scored = work.trials(second)
    for (pair, track), setting in best.items():
        if (job := _options(pair, setting)) in scored:
            every = [*tried[pair], *zip(second[job], scored[job], strict=True)]
            best[pair, track] = board.best(pair[0], track, every)
    tests = {
        (*pair, f"test-{seed}"): {"seed": seed, "settings": [best[pair, track] for track in tracks]}
        for pair in tried
        for seed in seeds
    }
    tested, results = work(tests), {name: dict[str, Any]() for name in here}
    for pair in tried:
        splits = [
            {track: each and _few(each[track]) for track, each in zip(tracks, tested[job], strict=True)}
            for seed in seeds
            if (job := (*pair, f"test-{seed}")) in tested
        ]
        if len(splits) == len(seeds):
            results[pair[0]][pair[1]] = {"chosen": {track: best[pair, track] for track in tracks}, "splits": splits}
    return results


def _options(pair: tuple[str, str], best: Setting) -> Job:
    return *pair, f"options-{best.get('learning_rate', 0.0):g}"


def _few(values: Mapping[str, float]) -> dict[str, float]:
    return {name: rounded(value, 6) for name, value in values.items()}


def _first(board: Board, here: Sequence[str], work: Work) -> dict[tuple[str, str], Tried]:
    """Return the first trials by task and row; if a best rate is at an end of the grid, all rows try more rates."""
    trials, tracks = board.table["trials"], board.table["tracks"]
    tried = {(task, row): Tried() for task in here for row in board.on(task)}
    grids, turn = {task: list[float]() for task in here}, 0
    asked = {task: [*grid, *trials["rates"]] for task, grid in grids.items()}
    while asked:
        jobs = {
            (task, row, f"rates-{turn}"): board.rows[row].first(board.tasks[task], asked[task])
            for task, row in tried
            if task in asked and (turn == 0 or isinstance(board.rows[row], MethodRow))
        }
        for job, scored in work.trials(jobs).items():
            tried[job[:2]] += zip(jobs[job], scored, strict=True)
        ends = {task: set[float | None]() for task in asked}
        for (task, _), results in tried.items():
            if task in asked and results:
                ends[task] |= {board.best(task, track, results).get("learning_rate") for track in tracks}
        grids |= {task: [*grids[task], *rates] for task, rates in asked.items()}
        asked = {task: more for task in asked if (more := extended(grids[task], ends[task], trials))}
        turn += 1
    return {pair: scores for pair, scores in tried.items() if scores}


def extended(grid: Sequence[float], best: Collection[float | None], trials: Mapping[str, Any]) -> list[float]:
    """Return more learning rates beyond best ends of a grid, up to ``extensions`` times at each end."""
    steps, most = range(1, trials["doublings"] + 1), 2.0 ** (trials["doublings"] * trials["extensions"])
    low, high = min(grid), max(grid)
    lower = [low / 2.0**step for step in steps] if low in best and low > min(trials["rates"]) / most else []
    return lower + ([high * 2.0**step for step in steps] if high in best and high < max(trials["rates"]) * most else [])
