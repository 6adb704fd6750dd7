"""MLflow: one of its runs per run, through its client, so that runs side by side never mix."""

import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from wafl.base.extras import require
from wafl.results.history import Record
from wafl.results.run import Run
from wafl.studies.trackers.base import Log, Tracker, flat, name_of, numbers, settings_of

KEY, DIVERGED = "wafl.key", "wafl.diverged"
_LONGEST = 500
"""The most characters of a parameter in every store of MLflow."""
_ALLOW_FILES = "MLFLOW_ALLOW_FILE_STORE"


class MLflowTracker(Tracker):
    """A tracker that logs metrics per round, and settings as parameters. A run that diverged has the status FAILED.

    MLflow shows a folder with ``MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri mlruns``.

    Args:
        experiment: what MLflow calls the experiment.
        tracking_uri: a server, a database or a folder; by default ``$MLFLOW_TRACKING_URI``, or the folder ``mlruns``.
        key: names this training. With the same key, an interrupted run continues in the MLflow run it had, and a round
            that is there already is not logged again. Without a key, every process makes its own runs.
    """

    def __init__(
        self, experiment: str, tracking_uri: str | os.PathLike[str] | None = None, *, key: str | None = None
    ) -> None:
        super().__init__()
        mlflow = require("mlflow", extra="mlflow", what="MLflowTracker")
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns")
        uri = uri if isinstance(uri, str) else Path(uri).resolve().as_uri()
        self._key = key
        try:
            with _files_allowed():
                self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(experiment)
            self._experiment: str = known.experiment_id if known else self._client.create_experiment(experiment)
        except (mlflow.MlflowException, ImportError) as error:
            raise ValueError(f"MLflow cannot log to {uri}: {error}") from error

    def _open(self, index: int, run: Run) -> Log:
        tags: dict[str, str] = {}
        if self._key is not None:
            tags[KEY] = sha256(f"{self._key}/{index}".encode()).hexdigest()
            filter_string = f"tags.`{KEY}` = '{tags[KEY]}'"
            for begun in self._client.search_runs([self._experiment], filter_string, max_results=1):
                self._client.update_run(begun.info.run_id, status="RUNNING")
                return _Metrics(self._client, begun.info.run_id)
        made = self._client.create_run(self._experiment, run_name=name_of(run), tags=tags)
        for name, value in flat(settings_of(run)).items():
            text = str(value)
            short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
            self._client.log_param(made.info.run_id, name, short)
        return _Metrics(self._client, made.info.run_id)


class _Metrics(Log):
    """The log of one run of MLflow, in which no round is logged twice."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._metric: Any = require("mlflow.entities", extra="mlflow", what="MLflowTracker").Metric
        self._logged = {
            (name, metric.step)
            for name in client.get_run(run_id).data.metrics
            for metric in client.get_metric_history(run_id, name)
        }

    def write(self, record: Record) -> None:
        now = int(time.time() * 1000)
        named = {_allowed(name): value for name, value in numbers(record).items()}
        metrics = [
            self._metric(name, value, now, record.round)
            for name, value in named.items()
            if (name, record.round) not in self._logged
        ]
        if metrics:
            self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, diverged: str | None) -> None:
        if diverged is not None:
            self._client.set_tag(self._run_id, DIVERGED, diverged)
        self._client.set_terminated(self._run_id, "FINISHED" if diverged is None else "FAILED")


@contextmanager
def _files_allowed() -> Generator[None, None, None]:
    """A block in which MLflow 3 opens a store of files; its databases need packages that its client does not."""
    before = os.environ.get(_ALLOW_FILES)
    os.environ.setdefault(_ALLOW_FILES, "true")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ALLOW_FILES]


def _allowed(name: str) -> str:
    """A metric's name in the characters that MLflow takes.

    >>> _allowed("accuracy@5 (clean)")
    'accuracy_5 _clean_'
    """
    return re.sub(r"[^\w.\- /:]", "_", name)
