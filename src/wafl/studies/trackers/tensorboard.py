"""TensorBoard: one folder of event files per run."""

import json
import os
import re
from pathlib import Path
from typing import Any

from wafl.base.extras import require
from wafl.results.history import Record
from wafl.results.run import Run
from wafl.studies.trackers.base import Log, Tracker, flat, name_of, numbers, settings_of


class TensorBoardTracker(Tracker):
    """A tracker that writes ``folder/<index>-<name>`` for each run: scalars per round, and its settings.

    Use ``wafl.fit(..., callbacks=[TensorBoardTracker("logs")])``, then ``tensorboard --logdir logs``. A process that
    joins a run writes all its rounds again, and tells TensorBoard to forget the old ones: no round is shown twice.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        require("tensorboard", extra="tensorboard", what="TensorBoardTracker")
        self._folder = Path(folder)

    def _open(self, index: int, run: Run) -> Log:
        return _Events(self._folder / f"{index}-{_slug(name_of(run))}", settings_of(run))


class _Events(Log):
    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        hparams = require("tensorboard.plugins.hparams.summary_v2", extra="tensorboard", what="TensorBoardTracker")
        writing = require("torch.utils.tensorboard", extra="tensorboard", what="TensorBoardTracker")
        self._writer: Any = writing.SummaryWriter(str(folder), purge_step=0)
        self._writer.file_writer.add_summary(hparams.hparams_pb(flat(settings)))
        self._writer.add_text("settings", f"```json\n{json.dumps(settings, indent=1)}\n```", 0)

    def write(self, record: Record) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record.round)
        self._writer.flush()

    def close(self, diverged: str | None) -> None:
        if diverged is not None:
            self._writer.add_text("diverged", diverged, 0)
        self._writer.close()


def _slug(name: str) -> str:
    """The name as a folder's, without characters that trouble file systems or shells.

    >>> _slug("WAFL (gamma=1.0, seed=0)")
    'WAFL-gamma=1.0-seed=0'
    """
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-")
