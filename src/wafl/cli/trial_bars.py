"""Bars that show how far the trials of each method have come."""

from collections.abc import Collection

from rich.console import Console

from wafl.callbacks import Callback
from wafl.cli.bars import rounds_display
from wafl.results import progress as engine
from wafl.tuning.tune import Search


class TrialBars(Callback):
    """A callback with one bar per method that is not done yet; the rounds of all its trials count."""

    def __init__(self, search: Search, known: Collection[str], console: Console) -> None:
        self.display = rounds_display(console)
        pending = [candidate for candidate in search.candidates if candidate.name not in known]
        self._rounds = {candidate.name: candidate.schedule["rounds"] for candidate in pending}
        self._names = [name for name in self._rounds for _ in search.settings[name] for _ in search.trained_seeds]
        self._bars = {
            name: self.display.add_task(name, total=rounds * self._names.count(name), start=False, numbers="")
            for name, rounds in self._rounds.items()
        }

    def on_progress(self, progress: engine.Progress) -> None:
        done = dict.fromkeys(self._bars, 0)
        for place, run in progress.runs.items():
            name = self._names[place]
            done[name] += self._rounds[name] if run.stopped else len(run.history)
        for name, count in done.items():
            if count and not self.display.tasks[self._bars[name]].started:
                self.display.start_task(self._bars[name])
            self.display.update(self._bars[name], completed=count)
