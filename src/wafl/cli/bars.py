"""Show the progress of each method of a study: a line each in a terminal, occasional lines in a file, or JSON."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from wafl.callbacks import Callback
from wafl.results import progress as engine
from wafl.results.history import History
from wafl.studies.pace import Pace, pace_of
from wafl.studies.study import Study

PAUSE = 10.0
"""The seconds between two lines, if the output goes to a file."""

Mode = Literal["bars", "quiet", "json"]
"""The output during training: bars (or lines, in a file), nothing, or one JSON object per line."""


class Bars(Callback):
    """A callback with a bar per unfinished method of a study, or occasional lines without a terminal."""

    def __init__(self, study: Study, console: Console, mode: Mode = "bars") -> None:
        self.display = Progress(
            TextColumn("{task.description:<10}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("rounds{task.fields[runs]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
            console=console,
            disable=mode != "bars" or not console.is_terminal,
            expand=True,
        )
        self._mode = mode
        pending = study.pending()
        self._runs = {entry.name: len(entry.specs(study.plan.experiment.seeds)) for entry in pending}
        self._totals = {entry.name: entry.schedule["rounds"] for entry in pending}
        self._seeds = len(study.plan.experiment.seeds)
        self._bars = {
            entry.name: self.display.add_task(
                entry.title, total=None, start=False, numbers="", runs=self._what(self._runs[entry.name])
            )
            for entry in pending
        }
        self._coming = iter(self._bars)
        self._training = ""
        self._began: dict[str, tuple[float, int]] = {}
        self._last_print = time.monotonic()

    def on_start(self, progress: engine.Progress | None) -> None:
        """Start the bar of the next method."""
        self._training = next(self._coming)
        self._began[self._training] = time.monotonic(), 0
        if progress is not None:
            self.on_progress(progress)
            self._began[self._training] = time.monotonic(), self._rounds_of(progress) // self._runs[self._training]

    def on_choice(self, index: int, name: str, chosen: engine.ChosenRadius) -> None:
        """Print the chosen radius of a run."""
        if self._mode == "json":
            print(json.dumps({"event": "choice", "run": name, **asdict(chosen)}), flush=True)
        elif self._mode == "bars":
            self.display.console.print(f"{name}: {chosen.why}", markup=False, soft_wrap=True)

    def on_progress(self, progress: engine.Progress) -> None:
        """Show the trained rounds."""
        self.show(self._training, self._rounds_of(progress), [run.history for run in progress.runs.values()])

    def _rounds_of(self, progress: engine.Progress) -> int:
        rounds = self._totals[self._training]
        return sum(rounds if run.stopped else len(run.history) for run in progress.runs.values())

    def show(self, name: str, done: int, histories: Sequence[History] = ()) -> None:
        """Show the finished rounds of all runs of a method."""
        bar, rounds = self._bars[name], done // self._runs[name]
        self.display.start_task(bar)
        before = self.display.tasks[bar].completed
        pace = self._pace(name, rounds, histories)
        self.display.update(bar, completed=rounds, total=self._totals[name], numbers=pace.numbers)
        if rounds > before:
            if self._mode == "json":
                print(json.dumps({"event": "round", **asdict(pace)}), flush=True)
            elif self._mode == "bars" and not self.display.console.is_terminal:
                self._say(pace, self._runs[name], self._began[name][0])

    def _pace(self, name: str, rounds: int, histories: Sequence[History]) -> Pace:
        now = time.monotonic()
        began, first = self._began.setdefault(name, (now, 0))
        rate = (rounds - first) / (now - began) if now > began and rounds > first else None
        left = (self._totals[name] - rounds) / rate if rate else None
        last = [(index, history[-1]) for index, history in enumerate(histories) if len(history)]
        lines = [
            {"method": name, "run": index, "round": each.round, **each.numbers(), **each.metrics}
            for index, each in last
        ]
        title = self.display.tasks[self._bars[name]].description
        pace = pace_of(title, self._totals[name], self._runs[name], lines)
        return replace(pace, round=rounds, rounds_per_second=rate, seconds_left=left)

    def _what(self, runs: int) -> str:
        """Return the name of a method's runs, if there are several: its seeds, unless it sweeps more."""
        kind = "seeds" if runs == self._seeds else "runs"
        return f", {runs} {kind}" if runs > 1 else ""

    def _say(self, pace: Pace, runs: int, began: float) -> None:
        now = time.monotonic()
        if pace.round < pace.rounds and now - self._last_print < PAUSE:
            return
        self._last_print = now
        text = f"{pace.method}: {pace.round} of {pace.rounds} rounds{self._what(runs)}, {now - began:.0f} s"
        self.display.console.print(f"{text}, {pace.numbers}" if pace.numbers else text, markup=False, soft_wrap=True)
