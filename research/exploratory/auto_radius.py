"""``radius="auto"`` against the best of a fixed grid of radii, and against gamma 0.5, on clients that never train.

    python -m research auto-radius [--data turned-digits smartwatch ...] [--seeds 5] [--processes 2]
        [--tables FOLDER] [--smallest]

The clients are the leaderboard's: digits turned by an angle that no client trains on, vowels by speaker, exercises by
subject. Regret is in points, on all examples of the unseen clients: the mean over clients, and the mean over their
worst tenth. "Best of the grid" is one radius per data set and number: the best mean over seeds, chosen by the test
examples themselves. "Best each time" is the best radius of each seed, which no rule could know. Intervals are 95%
(Student's t over seeds). Cost is processor time, in runs with the radius that was chosen.

--tables is a folder with mlbench's Vowel.rda, or with the tables that --export wrote on another machine.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table as Printed
from scipy import stats

import wafl
from benchmarks import options
from research.leaderboard.tasks import tasks_of
from research.registration import registered
from wafl.base.errors import TrainingWarning
from wafl.data.named.natural import NATURAL, Table

RATES = {"turned-digits": 0.3, "mlbench-vowel": 0.5, "smartwatch": 0.5}
"""The learning rate on each data set."""
GRID = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
NUMBERS = {"accuracy": "unseen", "worst": "worst tenth"}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = options.make_parser(__doc__)
    parser.add_argument("--data", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--grid", type=float, nargs="+", default=GRID)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--export", type=Path, help="write the tables of the data sets into this folder, and end")
    parser.add_argument("--output", type=Path, help="a JSON file for all numbers")
    given = options.read(parser, argv, data=["turned-digits"], seeds=1, rounds=1, grid=[0.1])
    find_tables(given.tables)
    if given.export is not None:
        export(given.data, given.export)
        return
    jobs = [(name, seed, given.rounds, given.grid, given.tables) for name in given.data for seed in range(given.seeds)]
    if given.processes > 1:
        with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
            rows = list(pool.map(measure, *zip(*jobs, strict=True)))
    else:
        rows = [measure(*job) for job in jobs]
    if given.output is not None:
        given.output.write_text(json.dumps(rows, indent=1))
    show(rows, given.data)


def find_tables(folder: Path | None) -> None:
    """Look for data sets in this folder; tables that --export wrote need none of their packages."""
    if folder is None:
        return
    os.environ["WAFL_DATA"] = str(folder)
    for name in RATES:
        if name in NATURAL and (folder / f"{name}.npz").exists():
            NATURAL[name] = replace(NATURAL[name], module="numpy", brought=True, file=f"{name}.npz", read=_read)


def _read(path: Path) -> Table:
    with np.load(path) as saved:
        return Table(saved["x"], saved["y"], saved["who"].tolist())


def export(names: Sequence[str], folder: Path) -> None:
    """Write the tables of natural data sets to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in NATURAL:
            table = NATURAL[name].load(Path(os.environ.get("WAFL_DATA", ".")))
            np.savez(folder / f"{name}.npz", x=table.x, y=table.y, who=np.array(table.who))


def measure(name: str, seed: int, rounds: int, grid: Sequence[float], tables: Path | None) -> dict[str, Any]:
    """Return one seed's results on one data set: every radius of the grid, gamma 0.5 and the chosen radius."""
    torch.set_num_threads(1)
    find_tables(tables)
    warnings.simplefilter("ignore", TrainingWarning)
    task = tasks_of(registered("natural")[0])[name]
    clients, unseen = replace(task, about={**task.about, "share_tuned": 0.3}).split(seed)
    model = wafl.models.mlr(clients)
    schedule: dict[str, Any] = {
        "rounds": rounds, "local_steps": 5, "learning_rate": RATES[name], "seed": seed
    }  # fmt: skip

    def score(run: wafl.Run) -> dict[str, float]:
        unseen_score = wafl.evaluate(run, clients, unseen=unseen).unseen
        assert unseen_score is not None
        assert unseen_score.client_accuracy is not None
        return {"accuracy": 100.0 * unseen_score.client_accuracy, "worst": 100.0 * unseen_score.worst_tenth}

    runs = wafl.sweep(model, clients, wafl.WAFL(radius=1.0), {"radius": list(grid)}, **schedule)
    paper = wafl.fit(model, clients, wafl.WAFL(gamma=0.5), **schedule)
    began = time.process_time()
    auto = wafl.fit(model, clients, wafl.WAFL(radius="auto"), **schedule)
    whole = time.process_time() - began
    began = time.process_time()
    wafl.fit(model, clients, wafl.WAFL(radius=auto.settings["chosen"]["radius"]), **schedule)
    return {
        "data": name,
        "seed": seed,
        "grid": {f"{radius:g}": score(run) for radius, run in zip(grid, runs, strict=True)},
        "gamma 0.5": score(paper),
        "auto": score(auto),
        "chosen": auto.settings["chosen"],
        "cost": whole / (time.process_time() - began),
    }


def show(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Print the table."""
    table = Printed(
        "data", "on", "best of the grid", "auto", "regret", "best each time", "over gamma 0.5", "cost, runs"
    )
    pooled: dict[str, list[tuple[float, float, float]]] = {number: [] for number in NUMBERS}
    for name in names:
        of_data = [row for row in rows if row["data"] == name]
        for number, words in NUMBERS.items():
            grid = {radius: [row["grid"][radius][number] for row in of_data] for radius in of_data[0]["grid"]}
            best = max(grid, key=lambda radius: fmean(grid[radius]))
            auto = [row["auto"][number] for row in of_data]
            gaps = [
                (grid[best][index] - auto[index], max(values[index] for values in grid.values()) - auto[index],
                 auto[index] - of_data[index]["gamma 0.5"][number])
                for index in range(len(of_data))
            ]  # fmt: skip
            pooled[number] += gaps
            cost = f"{fmean(row['cost'] for row in of_data):.2f}" if number == "accuracy" else ""
            summary = [interval(column) for column in zip(*gaps, strict=True)]
            table.add_row(name, words, f"{fmean(grid[best]):.1f} at {best}", f"{fmean(auto):.1f}", *summary, cost)
    for number, words in NUMBERS.items():
        summary = [interval(column) for column in zip(*pooled[number], strict=True)]
        table.add_row("all", words, "", "", *summary, "")
    Console(width=130).print(table)
    for row in rows:
        print(f"{row['data']}, seed {row['seed']}: {row['chosen']['why']}")


def interval(values: Sequence[float]) -> str:
    """Format the mean and its 95% interval."""
    if len(values) < 2:
        return f"{fmean(values):.1f}"
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return f"{fmean(values):.1f} ± {half:.1f}"


if __name__ == "__main__":
    main()
