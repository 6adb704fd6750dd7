"""How far each method of a study has come: bars in a terminal, lines in a file."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from wafl.engine import progress as engine
from wafl.engine.callbacks import Callback
from wafl.runs.study import Study

PAUSE = 10.0
"""Seconds between two lines, if the output goes to a file."""


def rounds_display(console: Console, *, disable: bool = False) -> Progress:
    """Bars of rounds: how many of how many, and for how long."""
    return Progress(
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        console=console,
        disable=disable,
    )


class Bars(Callback):
    """One bar per method of a study that is not done yet: the rounds of one run, as the mean over its runs.

    If the console is no terminal, a line is printed now and then instead.
    """

    def __init__(self, study: Study, console: Console) -> None:
        self.display = rounds_display(console, disable=not console.is_terminal)
        pending = study.pending()
        self._runs = {entry.name: len(entry.specs(study.plan.experiment.seeds)) for entry in pending}
        self._totals = {entry.name: study.plan.num_rounds(entry) // self._runs[entry.name] for entry in pending}
        self._bars = {
            entry.name: self.display.add_task(
                entry.method.name if entry.name == entry.method.name.lower() else entry.name, total=None, start=False
            )
            for entry in pending
        }
        self._coming = iter(self._bars)
        self._training = ""
        self._began: dict[str, float] = {}
        self._said = time.monotonic()

    def on_start(self, progress: engine.Progress | None) -> None:
        self._training = next(self._coming)
        self._began[self._training] = time.monotonic()
        if progress is not None:
            self.on_progress(progress)

    def on_progress(self, progress: engine.Progress) -> None:
        rounds = self._totals[self._training]
        self.show(self._training, sum(rounds if run.stopped else len(run.history) for run in progress.runs.values()))

    def show(self, name: str, done: int) -> None:
        """Show that this many rounds of all runs of a method are done."""
        bar, rounds = self._bars[name], done // self._runs[name]
        if not self.display.tasks[bar].started:
            self.display.start_task(bar)
        before = self.display.tasks[bar].completed
        self.display.update(bar, completed=rounds, total=self._totals[name])
        if not self.display.console.is_terminal and rounds > before:
            self._say(name, rounds)

    def _say(self, name: str, rounds: int) -> None:
        now, total = time.monotonic(), self._totals[name]
        if rounds < total and now - self._said < PAUSE:
            return
        self._said = now
        label, runs = self.display.tasks[self._bars[name]].description, self._runs[name]
        seconds = now - self._began.setdefault(name, now)
        each = f" of each of {runs} runs" if runs > 1 else ""
        self.display.console.print(f"{label}: round {rounds} of {total}{each}, {seconds:.0f} s", markup=False)
