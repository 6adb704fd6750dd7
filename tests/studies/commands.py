"""Commands on studies, interruptions, and what a study's folder contains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from wafl.callbacks import Callback, Moment
from wafl.cli.main import app
from wafl.results.progress import Progress
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.progress import read_lines
from wafl.studies.study import Study


def invoke(*arguments: Any) -> Any:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, [str(argument) for argument in arguments])


def contents(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that a finished study gave, to the last bit, without the time it took."""
    study = StudyFolder(folder)
    results = study.read_results()
    assert results.pop("finished")
    results.pop("metrics")
    metrics = read_lines(study.metrics)
    for row in (*results["methods"].values(), *metrics):
        row.pop("seconds", None)  # a run that diverged has none
    params = {name: data for name, data in contents(folder).items() if name.endswith("params.safetensors")}
    return {"results": results, "metrics": metrics, "params": params}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


class Rounds(Callback):
    """Counts the rounds of all runs, method by method; stops a method after ``at`` rounds, as Ctrl-C does."""

    def __init__(self, study: Study, method: str = "", at: int = 0) -> None:
        self._coming = iter([entry.name for entry in study.pending()])
        self._stop = (method, at)
        self.counts: dict[str, int] = {}

    def on_start(self, progress: Progress | None) -> None:
        self._method = next(self._coming)
        self.counts[self._method] = 0

    def on_round(self, moment: Moment) -> None:
        self.counts[self._method] += 1
        if (self._method, self.counts[self._method]) == self._stop:
            raise KeyboardInterrupt


def interrupt(study: Study, method: str, at: int) -> None:
    """Stop it as Ctrl-C does, when that many rounds of all runs of the method have ended."""
    with pytest.raises(KeyboardInterrupt):
        study.run([Rounds(study, method, at)])


def methods_trained(study: Study) -> list[str]:
    """Which methods had rounds left when the study was resumed and run."""
    rounds = Rounds(study)
    study.run([rounds])
    return [method for method, count in rounds.counts.items() if count]
