"""Log metrics to other tools: TensorBoard, MLflow and Weights & Biases, each an extra."""

import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wafl.base.extras import require
from wafl.callbacks import Callback, Moment
from wafl.results.history import History, Record
from wafl.results.run import Run

if TYPE_CHECKING:
    from wafl.config.experiment import Trackers

Plain = str | int | float


class Tracker(Callback, ABC):
    """A callback that logs every number of every round, one log per run of a sweep.

    A log is opened at the first event of its run, and starts with the rounds of the run's history. After a resume, or
    after a crash that lost unwritten rounds, a log therefore contains every round. Each tracker's description explains
    its treatment of rounds that were logged before.

    Put a tracker after the callbacks whose metrics it should log.
    """

    def __init__(self) -> None:
        self._logs: dict[int, Any] = {}

    @abstractmethod
    def _open(self, index: int, run: Run) -> Any:
        """Open a log with the run's settings and return it; ``index`` is the run's index in its sweep."""

    @abstractmethod
    def _write(self, log: Any, record: Record) -> None:
        """Add one round to a log."""

    @abstractmethod
    def _close(self, log: Any, diverged: str | None) -> None:
        """Close a log: the run is done, or has diverged for this reason."""

    def on_round(self, moment: Moment) -> None:
        """Log the round."""
        self._write(self._log(moment.index, moment.run, moment.history), moment.final_record())

    def on_end(self, index: int, run: Run) -> None:
        """Close the log of a run."""
        self._close(self._log(index, run, run.history), run.diverged)
        del self._logs[index]

    def _log(self, index: int, run: Run, before: History) -> Any:
        if index not in self._logs:
            self._logs[index] = self._open(index, run)
            for record in before:
                self._write(self._logs[index], record)
        return self._logs[index]


def numbers(record: Record) -> dict[str, float]:
    """Return all numbers of a round, by name."""
    return {name: float(value) for name, value in {**record.numbers(), **record.metrics}.items()}


def name_of(run: Run) -> str:
    """Return the name of a run, the same in every process: its method, swept values and seed."""
    varied = ", ".join(f"{name}={value}" for name, value in run.point.items())
    return f"{run.method} ({varied})" if varied else run.method


def settings_of(run: Run) -> dict[str, Any]:
    """Return the settings of a run, without the scalars, which training may learn."""
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


class TensorBoardTracker(Tracker):
    """A tracker that writes ``folder/<index>-<name>`` for each run: scalars per round, and its settings.

    Use ``wafl.fit(..., callbacks=[TensorBoardTracker("logs")])``, then ``tensorboard --logdir logs``. A process that
    resumes a run writes all its rounds again, and tells TensorBoard to discard the old ones, so no round appears twice.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        require("tensorboard", extra="tensorboard", what="TensorBoardTracker")
        self._folder = Path(folder)

    def _open(self, index: int, run: Run) -> Any:
        hparams = require("tensorboard.plugins.hparams.summary_v2", extra="tensorboard", what="TensorBoardTracker")
        writing = require("torch.utils.tensorboard", extra="tensorboard", what="TensorBoardTracker")
        settings = settings_of(run)
        writer = writing.SummaryWriter(str(self._folder / f"{index}-{_slug(name_of(run))}"), purge_step=0)
        writer.file_writer.add_summary(hparams.hparams_pb(flat(settings)))
        writer.add_text("settings", f"```json\n{json.dumps(settings, indent=1)}\n```", 0)
        return writer

    def _write(self, log: Any, record: Record) -> None:
        for name, value in numbers(record).items():
            log.add_scalar(name, value, record.round)
        log.flush()

    def _close(self, log: Any, diverged: str | None) -> None:
        if diverged is not None:
            log.add_text("diverged", diverged, 0)
        log.close()


def _slug(name: str) -> str:
    """Convert a name to a folder name, without characters that are difficult for file systems or shells.

    >>> _slug("WAFL (gamma=1.0, seed=0)")
    'WAFL-gamma=1.0-seed=0'
    """
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-")


KEY, DIVERGED = "wafl.key", "wafl.diverged"
_LONGEST = 500
"""The maximum number of characters of a parameter in every store of MLflow."""
_ALLOW_FILES = "MLFLOW_ALLOW_FILE_STORE"


class MLflowTracker(Tracker):
    """A tracker that logs metrics per round, and settings as parameters. A run that diverged has the status FAILED.

    MLflow shows a folder with ``MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri mlruns``.

    Args:
        experiment: the name of the experiment in MLflow.
        tracking_uri: a server, a database or a folder; by default ``$MLFLOW_TRACKING_URI``, or the folder ``mlruns``.
        key: the name of this study. With the same key, an interrupted run continues in its MLflow run, and existing
            rounds are not logged again. Without a key, every process creates new runs.
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

    def _open(self, index: int, run: Run) -> tuple[str, set[tuple[str, int]]]:
        """Return the id of the run in MLflow, and its existing metrics, by name and round."""
        tags: dict[str, str] = {}
        if self._key is not None:
            tags[KEY] = sha256(f"{self._key}/{index}".encode()).hexdigest()
            filter_string = f"tags.`{KEY}` = '{tags[KEY]}'"
            for begun in self._client.search_runs([self._experiment], filter_string, max_results=1):
                run_id = begun.info.run_id
                self._client.update_run(run_id, status="RUNNING")
                histories = [self._client.get_metric_history(run_id, name) for name in begun.data.metrics]
                return run_id, {(metric.key, metric.step) for history in histories for metric in history}
        run_id = self._client.create_run(self._experiment, run_name=name_of(run), tags=tags).info.run_id
        for name, value in flat(settings_of(run)).items():
            text = str(value)
            self._client.log_param(run_id, name, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}...")
        return run_id, set()

    def _write(self, log: tuple[str, set[tuple[str, int]]], record: Record) -> None:
        (run_id, logged), now = log, int(time.time() * 1000)
        metric: Any = require("mlflow.entities", extra="mlflow", what="MLflowTracker").Metric
        named = {_allowed(name): value for name, value in numbers(record).items()}
        new = {name: value for name, value in named.items() if (name, record.round) not in logged}
        if new:
            metrics = [metric(name, value, now, record.round) for name, value in new.items()]
            self._client.log_batch(run_id, metrics=metrics)

    def _close(self, log: tuple[str, set[tuple[str, int]]], diverged: str | None) -> None:
        if diverged is not None:
            self._client.set_tag(log[0], DIVERGED, diverged)
        self._client.set_terminated(log[0], "FINISHED" if diverged is None else "FAILED")


@contextmanager
def _files_allowed() -> Generator[None, None, None]:
    """Allow MLflow 3 to open a store of files during the block; its databases need additional packages."""
    before = os.environ.get(_ALLOW_FILES)
    os.environ.setdefault(_ALLOW_FILES, "true")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ALLOW_FILES]


def _allowed(name: str) -> str:
    """Replace characters of a metric's name that MLflow rejects.

    >>> _allowed("accuracy@5 (clean)")
    'accuracy_5 _clean_'
    """
    return re.sub(r"[^\w.\- /:]", "_", name)


_OPEN: dict[str, Any] = {}
"""The runs of this process by ID; wandb cannot open a run twice, as after an interruption in a notebook."""


class WandbTracker(Tracker):
    """A tracker that logs numbers per round, and settings as the config. A run that diverged has failed.

    Args:
        project: the name of the project in wandb.
        mode: ``online``, ``offline`` or ``disabled``; by default the value of ``$WANDB_MODE`` or wandb's settings.
        folder: the folder of wandb's files; offline they wait there for ``wandb sync``.
        key: the name of this study. With the same key, an interrupted run continues in its wandb run. Online,
            existing rounds do not change. Offline, each process writes a new run folder with all rounds so far, under
            the same id: sync the last one.
        group: the name in wandb of the group of a sweep's runs.
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

    def _open(self, index: int, run: Run) -> tuple[Any, int]:
        """Return the run in wandb, and its first new round: online, the round after its last step."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        identity = None if self._key is None else sha256(f"{self._key}/{index}".encode()).hexdigest()[:16]
        if identity in _OPEN:
            _OPEN.pop(identity).finish(exit_code=1)
        # Many runs share this process, so its output and its machine do not belong to a single run.
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
        return opened, int(opened.step)

    def _write(self, log: tuple[Any, int], record: Record) -> None:
        opened, first = log
        if record.round >= first:
            opened.log(numbers(record), step=record.round)

    def _close(self, log: tuple[Any, int], diverged: str | None) -> None:
        opened, _ = log
        _OPEN.pop(opened.id, None)
        if diverged is not None:
            opened.summary["diverged"] = diverged
        opened.finish(exit_code=0 if diverged is None else 1)


def make_trackers(trackers: "Trackers", folder: Path, method: str) -> list[Tracker]:
    """Create the trackers of one method, with files in the study's folder unless ``$MLFLOW_TRACKING_URI`` is set."""
    made: list[Tracker] = []
    about = folder / "about.json"  # so that a study that was removed and started again in the same folder is different
    content = about.read_bytes() if about.is_file() else b""
    key = f"{sha256(str(folder.resolve()).encode() + content).hexdigest()}/{method}"
    if trackers.tensorboard:
        made.append(TensorBoardTracker(folder / "tensorboard" / method))
    if trackers.mlflow:
        uri = os.environ.get("MLFLOW_TRACKING_URI") or folder / "mlflow"
        made.append(MLflowTracker(trackers.project, uri, key=key))
    if trackers.wandb:
        made.append(WandbTracker(trackers.project, folder=folder, key=key, group=f"{folder.name}-{method}"))
    return made
