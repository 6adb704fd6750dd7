"""What trackers share: one log per run, opened late, and complete whatever happened before."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from wafl.callbacks import Callback, Moment
from wafl.results.history import History, Record
from wafl.results.run import Run

Plain = str | int | float


class Log(ABC):
    """The log of one run's rounds."""

    @abstractmethod
    def write(self, record: Record) -> None:
        """Log one round."""

    @abstractmethod
    def close(self, diverged: str | None) -> None:
        """End the log: the run is done, or has diverged for this reason."""


class Tracker(Callback, ABC):
    """A callback that logs every number of every round, one log per run of a sweep.

    A log is opened when the tracker first hears of its run, and begins with the rounds of the run's history. So
    after a resume, or if a crash lost what was not yet written, a log holds every round. How a tracker treats a round
    that was logged before is in its own description.

    Put a tracker after the callbacks whose metrics it should log.
    """

    def __init__(self) -> None:
        self._logs: dict[int, Log] = {}

    @abstractmethod
    def _open(self, index: int, run: Run) -> Log:
        """Open a log with the run's settings; ``index`` is the run's index in its sweep."""

    def on_round(self, moment: Moment) -> None:
        if moment.index not in self._logs:
            self._logs[moment.index] = self._join(moment.index, moment.run, moment.history)
        self._logs[moment.index].write(moment.final_record())

    def on_end(self, index: int, run: Run) -> None:
        log = self._logs.pop(index, None) or self._join(index, run, run.history)
        log.close(run.diverged)

    def _join(self, index: int, run: Run, before: History) -> Log:
        log = self._open(index, run)
        for record in before:
            log.write(record)
        return log


def numbers(record: Record) -> dict[str, float]:
    """Return all numbers of a round, by name."""
    return {name: float(value) for name, value in {**record.numbers(), **record.metrics}.items()}


def name_of(run: Run) -> str:
    """Return the name of a run, the same in every process: its method, swept values and seed."""
    varied = ", ".join(f"{name}={value}" for name, value in run.point.items())
    return f"{run.method} ({varied})" if varied else run.method


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings of a training, without the scalars, which it may learn."""
    return {name: value for name, value in run.settings.items() if name != "scalars"}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """Flatten nested settings to one level, without None, and with lists as JSON.

    >>> flat({"method": {"name": "WAFL", "objective": {"gamma": 1.0, "bounds": [0, 1], "radius": None}}})
    {'method.name': 'WAFL', 'method.objective.gamma': 1.0, 'method.objective.bounds': '[0, 1]'}
    """
    level: dict[str, Plain] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            level |= flat(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        elif value is not None:
            level[f"{prefix}{name}"] = value if isinstance(value, str | int | float) else json.dumps(value)
    return level
