"""Weights & Biases: one of its runs per run, online or offline."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from wafl.base.extras import require
from wafl.results.history import Record
from wafl.results.run import Run
from wafl.studies.trackers.base import Log, Tracker, name_of, numbers, settings_of

_OPEN: dict[str, Any] = {}
"""This process's runs by id: wandb refuses to open one twice, as a notebook does that interrupts and resumes."""


class WandbTracker(Tracker):
    """A tracker that logs numbers per round, and settings as the config. A run that diverged has failed.

    Args:
        project: what wandb calls the project.
        mode: ``online``, ``offline`` or ``disabled``; by default what ``$WANDB_MODE`` or wandb's own settings say.
        folder: where wandb keeps its files; offline they wait there for ``wandb sync``.
        key: names this training. With the same key, an interrupted run continues in the wandb run it had. Online,
            rounds that are there already stay as they are. Offline, each process writes its own run folder with all
            rounds so far, under the same id: sync the last one.
        group: what wandb calls the group of the runs of a sweep.
    """

    def __init__(
        self,
        project: str,
        *,
        mode: Literal["online", "offline", "disabled"] | None = None,
        folder: str | os.PathLike[str] | None = None,
        key: str | None = None,
        group: str | None = None,
    ) -> None:
        super().__init__()
        self._wandb: Any = require("wandb", extra="wandb", what="WandbTracker")
        self._project, self._mode, self._key, self._group = project, mode, key, group
        self._folder = None if folder is None else Path(folder)
        if (mode or self._wandb.setup().settings.mode) == "online":
            try:
                self._wandb.login()
            except self._wandb.Error as error:
                raise ValueError(f"wandb cannot log in: {error} Or set WANDB_MODE=offline, and sync later") from error

    def _open(self, index: int, run: Run) -> Log:
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        identity = None if self._key is None else sha256(f"{self._key}/{index}".encode()).hexdigest()[:16]
        if identity in _OPEN:
            _OPEN.pop(identity).finish(exit_code=1)
        # Many runs share this process, so its output and its machine are not those of any one run.
        settings = self._wandb.Settings(console="off", silent=True, x_disable_stats=True)
        opened: Any = self._wandb.init(
            project=self._project,
            name=name_of(run),
            id=identity,
            resume=None if identity is None else "allow",
            group=self._group,
            config=settings_of(run),
            dir=None if self._folder is None else str(self._folder),
            mode=self._mode,
            reinit="create_new",
            settings=settings,
        )
        _OPEN[opened.id] = opened
        return _WandbRun(opened)


class _WandbRun(Log):
    """The log of one run of wandb, in which no round is logged twice."""

    def __init__(self, run: Any) -> None:
        self._run, self._first = run, int(run.step)  # a run continued online begins after its last step

    def write(self, record: Record) -> None:
        if record.round >= self._first:
            self._run.log(numbers(record), step=record.round)

    def close(self, diverged: str | None) -> None:
        _OPEN.pop(self._run.id, None)
        if diverged is not None:
            self._run.summary["diverged"] = diverged
        self._run.finish(exit_code=0 if diverged is None else 1)
