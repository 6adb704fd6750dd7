"""Every method side by side, tuned alike: on unseen angles, people and domains, and under attack.

    python -m research rivals [--only rotated vowels ...] [--processes N] [--work FOLDER] [--smallest]

Multinomial logistic regression and the same schedule for all; AFL takes the same number of steps, one per round. For
each seed, wafl.tune tries the same number of settings of every method, judged on clients that are held out (for kinds
and domains, where there are two clients, on examples), and the chosen one trains on all clients. Accuracy in percent on
what no client has seen, mean and half of Student's 95% interval over the seeds; + and - are methods that are above or
below FedAvg by more than the interval of the differences, paired by seed.

    rotated     digits, four clients at 0, 15, 30 and 45 degrees; unseen: 60 degrees.
    vowels      vowels by speaker (peterson-barney); unseen: a third of the speakers.
    kinds       the same with men, women and children as clients (peterson-kinds); unseen: one of the three.
    smartwatch  exercises by subject; unseen: a third of the subjects.
    skewed      digits, ten clients with three labels each, tested on their own examples as they are and under a
                projected gradient attack of 0.1, which trials are judged under, too.
    domains     500 images each of MNIST and SVHN are two clients; unseen: USPS. Seeds decide the batches.

Seeds decide who has which examples and who is unseen. --work keeps the result of each method, setting and seed in a
file; --tables takes natural data from files NAME.npz (x, y, who) instead of their packages.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

import wafl
from benchmarks import options
from research import jobs
from research.exploratory.rival_settings import Setting, settings
from research.old_cost_matrix import old_cost_matrix
from research.stand_ins import read_tables
from wafl.base.errors import DivergedError, TrainingWarning
from wafl.data.named.cache import data_folder

BATCH = 32
SHAPED = "WAFL, shape of clients"
RIVALS = {"WAFL": wafl.WAFL, SHAPED: lambda: wafl.WAFL(cost_matrix="clients"), **wafl.METHODS}
NAMES = ("rotated", "vowels", "kinds", "smartwatch", "skewed", "domains")
Results = dict[str, list[float] | None]
"""By seed, the accuracy in each column; None if the training diverged."""


def one_seed(name: str, setting: Setting, seed: int, trials: int, rounds: int) -> list[float] | None:
    """Return the accuracies of a method, tuned and trained on the clients of one seed."""
    seen, tested = setting.make(seed)
    method, model = RIVALS[name](), wafl.models.mlr(seen)
    if name == SHAPED and seen.num_clients < 3:  # today's unit needs a third client
        method = wafl.WAFL(cost_matrix=old_cost_matrix(seen))
    schedule: dict[str, Any] = {"rounds": rounds, "local_epochs": 1, "batch_size": BATCH}
    if name == "AFL":
        steps = math.ceil(int(seen.train.num_examples.max()) / BATCH)
        schedule = {"rounds": rounds * steps, "local_steps": 1, "batch_size": BATCH}
    judged: dict[str, Any] = {"held_out": setting.held_out, "share": setting.share, "attack": setting.attack}
    schedule["learning_rate"] = setting.rate
    try:
        best = wafl.tune(model, seen, {name: method}, trials=trials, seed=seed, **judged, **schedule).best[name]
        run = wafl.fit(model, seen, best.method, seed=seed, **best.schedule)
    except DivergedError:
        return None
    attacks = [None] if setting.attack is None else [None, setting.attack]
    return [100.0 * (wafl.evaluate(run, tested, attack=attack, seed=seed).accuracy or 0.0) for attack in attacks]


def work(job: tuple[str, str, int], given: argparse.Namespace) -> list[float] | None:
    """Return the accuracies of a method in a setting with one seed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", TrainingWarning)
    if given.tables is not None:
        read_tables(given.tables)
    name, where, seed = job
    setting = settings(data_folder(given.data_dir))[where]
    return one_seed(name, setting, seed, given.trials, given.rounds or setting.rounds)


def half_width(values: Sequence[float]) -> float:
    """Return half of Student's 95% interval of the mean."""
    return float(student.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def cell(result: Results, baseline: Results, column: int) -> str:
    """Format mean and interval, marked if it is beyond doubt above or below the baseline."""
    done = {seed: values[column] for seed, values in result.items() if values is not None}
    if not done:
        return "diverged" if result else "not finished"
    other = {seed: values[column] for seed, values in baseline.items() if values is not None}
    gains = [value - other[seed] for seed, value in done.items() if seed in other]
    mark = ""
    if len(gains) > 1 and abs(fmean(gains)) > half_width(gains):
        mark = " +" if fmean(gains) > 0 else " -"
    failed = f" ({len(result) - len(done)} diverged)" if len(done) < len(result) else ""
    return f"{fmean(done.values()):.1f} ± {half_width(list(done.values())):.1f}{mark}{failed}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES[:-1]))
    parser.add_argument("--methods", nargs="+", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--meant-for", help="and the methods whose use, in the list of methods, has this word")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--trials", type=int, default=16, help="of each method")
    parser.add_argument("--rounds", type=int, help="instead of each setting's rounds")
    jobs.add_options(parser, "rivals")
    parser.add_argument("--tables", type=Path, help="take natural data from here")
    parser.add_argument("--data-dir", type=Path)
    small: dict[str, Any] = {"seeds": [0], "rounds": 1, "trials": 2, "only": ["rotated"], "methods": ["FedAvg", "WAFL"]}
    given = options.read(parser, argv, **small)
    if given.meant_for is not None:
        meant = [name for name, preset in wafl.METHODS.items() if given.meant_for in preset.options.about.use]
        given.methods = list(dict.fromkeys([*given.methods, *meant]))
    every = [(name, where, seed) for name in given.methods for where in given.only for seed in given.seeds]
    stamp = {"name": "rivals", "trials": str(given.trials), "rounds": str(given.rounds)}
    done = jobs.kept(given, stamp).run(partial(work, given=given), {"-".join(map(str, job)): job for job in every})
    results: dict[tuple[str, str], Results] = {(name, where): {} for name, where, _ in every}
    for name, where, seed in every:
        if (label := f"{name}-{where}-{seed}") in done:
            results[name, where][str(seed)] = done[label]
    all_settings = settings(data_folder(given.data_dir))
    columns = [
        (title, where, column) for where in given.only for column, title in enumerate(all_settings[where].columns)
    ]
    table = Table("method, on what it has not seen", *(title for title, _, _ in columns))
    for name in given.methods:
        baseline = {where: results.get(("FedAvg", where), {}) for where in given.only}
        table.add_row(name, *(cell(results[name, where], baseline[where], column) for _, where, column in columns))
    Console(width=250).print(table)


if __name__ == "__main__":
    main()
