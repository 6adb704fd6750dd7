"""Bars that show how far each method of a study has come."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from wafl.engine import progress as engine
from wafl.engine.callbacks import Callback
from wafl.runs.study import Study


class Bars(Callback):
    """One bar per method of a study that is not done yet; the rounds of all its runs count."""

    def __init__(self, study: Study, console: Console) -> None:
        self.display = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            console=console,
        )
        pending = study.pending()
        self._totals = {entry.name: study.plan.num_rounds(entry) for entry in pending}
        self._bars = {
            entry.name: self.display.add_task(
                entry.method.name if entry.name == entry.method.name.lower() else entry.name, total=None, start=False
            )
            for entry in pending
        }
        self._coming = iter(self._bars)
        self._training = ""

    def on_start(self, progress: engine.Progress | None) -> None:
        self._training = next(self._coming)
        if progress is not None:
            self.on_progress(progress)

    def on_progress(self, progress: engine.Progress) -> None:
        rounds = self._totals[self._training] // len(progress.runs)
        self.show(self._training, sum(rounds if run.stopped else len(run.history) for run in progress.runs.values()))

    def show(self, name: str, done: int) -> None:
        """Show that so many rounds of a method are done."""
        bar = self._bars[name]
        if not self.display.tasks[bar].started:
            self.display.start_task(bar)
        self.display.update(bar, completed=done, total=self._totals[name])
