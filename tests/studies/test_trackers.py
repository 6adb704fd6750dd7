"""What trackers logged, read back with their own readers."""

from __future__ import annotations

import glob
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wafl
from wafl.callbacks import Callback, EvaluateEvery, Moment
from wafl.config.experiment import Trackers
from wafl.studies.trackers import MLflowTracker, TensorBoardTracker, WandbTracker, make_trackers, numbers
from wafl.train.checkpoint.checkpoint import Checkpoint

SEEDS = [0, 1, 2]
SCHEDULE: dict[str, Any] = {"rounds": 4, "local_steps": 1, "batch_size": 4, "learning_rate": 0.1}


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    rng = np.random.default_rng(0)
    pairs = [(rng.random((n, 4)), np.arange(n) % 3) for n in (5, 9, 7)]
    return wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use neither this user's settings nor the network."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def train(clients: wafl.Federation, *callbacks: Callback, **options: Any) -> list[wafl.Run]:
    watched = [EvaluateEvery(clients, rounds=2), *callbacks]
    method, grid = wafl.WAFL(gamma=1.0), {"gamma": [1.0, 2.0], "seed": SEEDS}
    return wafl.sweep(wafl.models.mlr(clients), clients, method, grid, callbacks=watched, **{**SCHEDULE, **options})


def rows(run: wafl.Run) -> dict[str, dict[int, float]]:
    """The numbers of a run's history: by name, then by round."""
    collected: dict[str, dict[int, float]] = {}
    for record in run.history:
        for name, value in numbers(record).items():
            collected.setdefault(name, {})[record.round] = value
    return collected


class Crash(Callback):
    """Ends training in a given round, as a crash would."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_round(self, moment: Moment) -> None:
        if moment.record.round == self.round:
            raise KeyboardInterrupt


def crash_and_resume(clients: wafl.Federation, folder: Path, *make: Any, **options: Any) -> list[wafl.Run]:
    """Train rounds 0 to 2 (the checkpoint holds the first two), then all of them, each time with new trackers."""
    with pytest.raises(KeyboardInterrupt):
        train(clients, *(each() for each in make), Crash(2), checkpoint=Checkpoint(folder / "checkpoint", every=2))
    time.sleep(1.1)  # event files are told apart by the second
    return train(clients, *(each() for each in make), checkpoint=Checkpoint(folder / "checkpoint", every=2), **options)


# TensorBoard


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    read.Reload()
    return read


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = events(folder)
    return {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}


def assert_same_scalars(folder: Path, run: wafl.Run) -> None:
    """Every round is there once, in order; TensorBoard keeps float32."""
    logged, expected = scalars(folder), rows(run)
    assert logged.keys() == expected.keys()
    for name, values in logged.items():
        assert [step for step, _ in values] == list(expected[name])
        if name != "seconds":
            assert dict(values) == pytest.approx(expected[name], rel=1e-6)


def test_tensorboard_holds_the_settings(clients: wafl.Federation, tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import plugin_data_pb2

    run = train(clients, TensorBoardTracker(tmp_path))[4]
    read = events(tmp_path / "4-WAFL-gamma=2.0-seed=1")
    (text,) = read.Tensors("settings/text_summary")
    settings = json.loads(text.tensor_proto.string_val[0].decode().removeprefix("```json\n").removesuffix("\n```"))
    assert settings == {name: value for name, value in run.settings.items() if name != "scalars"}
    content = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    hparams = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert hparams["method.objective.gamma"].number_value == 2.0
    assert hparams["schedule.seed"].number_value == 1
    assert hparams["unit"].string_value == "input units"


def test_tensorboard_after_a_crash_shows_each_round_once(clients: wafl.Federation, tmp_path: Path) -> None:
    runs = crash_and_resume(clients, tmp_path, lambda: TensorBoardTracker(tmp_path / "logs"))
    folders = sorted((tmp_path / "logs").iterdir())
    points = [(gamma, seed) for gamma in (1.0, 2.0) for seed in SEEDS]
    assert [path.name for path in folders] == [f"{i}-WAFL-gamma={g}-seed={s}" for i, (g, s) in enumerate(points)]
    assert {"loss", "achieved_radius", "gamma", "accuracy", "test_loss"} <= scalars(folders[0]).keys()
    for folder, run in zip(folders, runs, strict=True):
        assert_same_scalars(folder, run)


def test_a_run_that_ended_before_the_resume_is_logged_completely(clients: wafl.Federation, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint")
    train(clients, checkpoint=checkpoint)
    runs = train(clients, TensorBoardTracker(tmp_path / "logs"), checkpoint=checkpoint)
    for folder, run in zip(sorted((tmp_path / "logs").iterdir()), runs, strict=True):
        assert len(run.history) == 4
        assert_same_scalars(folder, run)


# MLflow


def mlflow_found(uri: str, experiment: str) -> tuple[Any, list[Any]]:
    """The client, and the runs of an experiment."""
    from mlflow import MlflowClient

    before = os.environ.get("MLFLOW_ALLOW_FILE_STORE")
    assert before is None, "the tracker left its mark on the environment"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        client = MlflowClient(tracking_uri=uri)
    result = client.get_experiment_by_name(experiment)
    assert result is not None
    return client, client.search_runs([result.experiment_id], max_results=100)


def mlflow_runs(uri: str, experiment: str) -> tuple[Any, list[Any]]:
    """The client, and the runs of an experiment in the order of the sweep."""
    client, runs = mlflow_found(uri, experiment)
    order = [f"WAFL (gamma={gamma}, seed={seed})" for gamma in (1.0, 2.0) for seed in SEEDS]
    return client, sorted(runs, key=lambda run: order.index(run.info.run_name))


def assert_same_metrics(client: Any, logged: Any, run: wafl.Run) -> None:
    expected = rows(run)
    assert logged.data.metrics.keys() == expected.keys()
    for name, values in expected.items():
        history = client.get_metric_history(logged.info.run_id, name)
        assert sorted(metric.step for metric in history) == list(values)
        if name != "seconds":
            assert {metric.step: metric.value for metric in history} == values


def test_mlflow_holds_every_number_of_every_run(clients: wafl.Federation, tmp_path: Path) -> None:
    runs = train(clients, MLflowTracker("digits", tmp_path / "store"))
    client, logged = mlflow_runs((tmp_path / "store").as_uri(), "digits")
    assert len(logged) == len(runs) == 6
    for each, run in zip(logged, runs, strict=True):
        assert_same_metrics(client, each, run)
        assert each.info.status == "FINISHED"
        assert float(each.data.params["method.objective.gamma"]) == run.settings["sweep"]["gamma"]
        assert int(each.data.params["schedule.seed"]) == run.settings["sweep"]["seed"]
        assert each.data.params["unit"] == "input units"


@pytest.mark.slow
def test_mlflow_continues_the_run_it_had_after_a_crash(clients: wafl.Federation, tmp_path: Path) -> None:
    def make() -> Callback:
        return MLflowTracker("digits", tmp_path / "store", key="study")

    runs = crash_and_resume(clients, tmp_path, make)
    client, logged = mlflow_runs((tmp_path / "store").as_uri(), "digits")
    assert len(logged) == 6
    for each, run in zip(logged, runs, strict=True):
        assert_same_metrics(client, each, run)
        assert each.info.status == "FINISHED"
    train(clients, MLflowTracker("digits", tmp_path / "store", key="another"), rounds=1)
    train(clients, MLflowTracker("digits", tmp_path / "store"), rounds=1)
    assert len(mlflow_runs((tmp_path / "store").as_uri(), "digits")[1]) == 18


def test_mlflow_reads_its_place_from_the_environment(
    clients: wafl.Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "given").as_uri())
    monkeypatch.chdir(tmp_path)
    MLflowTracker("digits")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    MLflowTracker("digits")
    assert {path.name for path in tmp_path.iterdir()} == {"given", "mlruns"}


def test_mlflow_accepts_long_settings_and_odd_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = wafl.Federation.from_arrays([(rng.random((2, 4)), np.arange(2))] * 300)

    def odd(moment: Moment) -> None:
        moment.metrics["accuracy@5"] = 0.5

    wafl.fit(
        wafl.models.mlr(clients), clients, wafl.FedAvg(), callbacks=[odd, MLflowTracker("long", tmp_path / "store")],
        client_weights=wafl.weights.fixed([1 / 300] * 300), **SCHEDULE,
    )  # fmt: skip
    _, (logged,) = mlflow_found((tmp_path / "store").as_uri(), "long")
    assert logged.data.metrics["accuracy_5"] == 0.5
    assert any(value.endswith("...") for value in logged.data.params.values())


def test_an_mlflow_store_that_cannot_be_opened_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ValueError, match="MLflow cannot log to sqlite:///"):
        MLflowTracker("digits", f"sqlite:///{tmp_path}/mlflow.db")


# Weights & Biases


def wandb_records(path: Path) -> Iterator[Any]:
    """An offline run's file: a signature, then LevelDB's log format (checksum, length, kind; blocks of 32 KB)."""
    from wandb.proto import wandb_internal_pb2

    data, position, record = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while position + 7 <= len(data):
        left = 2**15 - position % 2**15
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def wandb_run(path: Path) -> tuple[Any, dict[str, dict[int, float]], bool]:
    """The description of the run, its numbers by name and step, and whether it was closed."""
    about, result, closed = None, dict[str, dict[int, float]](), False
    for record in wandb_records(path):
        kind = record.WhichOneof("record_type")
        about = record.run if kind == "run" else about
        closed |= kind == "exit"
        if kind == "history":
            row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            step = int(row["_step"])
            for name, value in row.items():
                if not name.startswith("_"):
                    assert step not in result.setdefault(name, {}), f"{name} is logged twice at step {step}"
                    result[name][step] = value
    return about, result, closed


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    wandb.teardown()


@pytest.mark.usefixtures("offline")
def test_wandb_offline_holds_every_number_of_every_run(clients: wafl.Federation, tmp_path: Path) -> None:
    runs = crash_and_resume(
        clients, tmp_path, lambda: WandbTracker("digits", folder=tmp_path / "logs", key="study", group="few")
    )
    logged: dict[str, dict[int, Any]] = {}
    for path in sorted(map(Path, glob.glob(f"{tmp_path}/logs/wandb/offline-run-*/*.wandb"))):
        about, result, closed = wandb_run(path)
        logged[about.display_name] = {"about": about, "values": result, "name": path.stem}  # the last one counts
        assert closed
    assert len(logged) == len({each["name"] for each in logged.values()}) == 6
    for run in runs:
        sweep = run.settings["sweep"]
        each = logged[f"WAFL (gamma={sweep['gamma']}, seed={sweep['seed']})"]
        expected = rows(run)
        assert each["values"].keys() == expected.keys()
        assert all(each["values"][name] == values for name, values in expected.items() if name != "seconds")
        assert (each["about"].project, each["about"].run_group) == ("digits", "few")
        config = {item.key: json.loads(item.value_json) for item in each["about"].config.update}
        assert config["method"]["objective"]["gamma"] == sweep["gamma"]
        assert config["schedule"]["seed"] == sweep["seed"]


def test_wandb_without_a_login_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no key, and no terminal to ask for one."""
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(ValueError, match=r"wandb cannot log in: .*WANDB_MODE=offline"):
        WandbTracker("digits")
    wandb.teardown()


# All of them


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("tensorboard", lambda folder: TensorBoardTracker(folder)),
        ("mlflow", lambda folder: MLflowTracker("digits", folder)),
        ("wandb", lambda folder: WandbTracker("digits", folder=folder)),
    ],
)
def test_a_missing_package_names_the_extra(
    package: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    remedy = rf"needs the package {package}: pip install 'wafl-learn\[{package}\]'"
    with pytest.raises(ValueError, match=remedy):
        make(tmp_path / "logs")
    with pytest.raises(ValueError, match=rf"trackers.{package} = true {remedy}"):
        Trackers(**{package: True}).check()
    with pytest.raises(ValueError, match=remedy):
        make_trackers(Trackers(**{package: True}), tmp_path / "study", "wafl")
    assert not list(tmp_path.iterdir())


def test_an_experiment_gets_the_trackers_it_asks_for(clients: wafl.Federation, tmp_path: Path) -> None:
    assert make_trackers(Trackers(), tmp_path, "wafl") == []
    asked = Trackers(tensorboard=True, mlflow=True, project="paper")
    runs = train(clients, *make_trackers(asked, tmp_path, "wafl"))
    for folder, run in zip(sorted((tmp_path / "tensorboard" / "wafl").iterdir()), runs, strict=True):
        assert_same_scalars(folder, run)
    client, logged = mlflow_runs((tmp_path / "mlflow").as_uri(), "paper")
    for each, run in zip(logged, runs, strict=True):
        assert_same_metrics(client, each, run)


def train_diverging(clients: wafl.Federation, tracker: Callback) -> wafl.Run:
    """The second of two runs, which diverges."""
    schedule = {**SCHEDULE, "rounds": 6, "local_steps": 2, "callbacks": [tracker]}
    grid = {"weight_decay": [0.0, 1e38]}
    sound, lost = wafl.sweep(wafl.models.mlr(clients), clients, wafl.FedAvg(), grid, **schedule)
    assert (sound.diverged, lost.diverged is None) == (None, False)
    return lost


def test_tensorboard_holds_why_a_run_diverged(clients: wafl.Federation, tmp_path: Path) -> None:
    lost = train_diverging(clients, TensorBoardTracker(tmp_path))
    sent = events(tmp_path / "1-FedAvg-weight_decay=1e+38")
    assert sent.Tensors("diverged/text_summary")[0].tensor_proto.string_val[0].decode() == lost.diverged
    assert "diverged/text_summary" not in events(tmp_path / "0-FedAvg-weight_decay=0.0").Tags()["tensors"]


def test_a_run_that_diverged_has_failed_in_mlflow(clients: wafl.Federation, tmp_path: Path) -> None:
    lost = train_diverging(clients, MLflowTracker("digits", tmp_path / "store"))
    _, runs = mlflow_found((tmp_path / "store").as_uri(), "digits")
    result = {run.info.run_name: (run.info.status, run.data.tags.get("wafl.diverged")) for run in runs}
    assert result == {
        "FedAvg (weight_decay=0.0)": ("FINISHED", None),
        "FedAvg (weight_decay=1e+38)": ("FAILED", lost.diverged),
    }


@pytest.mark.usefixtures("offline")
def test_a_run_that_diverged_has_failed_in_wandb(clients: wafl.Federation, tmp_path: Path) -> None:
    train_diverging(clients, WandbTracker("digits", folder=tmp_path))
    codes: dict[str, int] = {}
    for path in map(Path, glob.glob(f"{tmp_path}/wandb/offline-run-*/*.wandb")):
        about, _, _ = wandb_run(path)
        (left,) = [record.exit for record in wandb_records(path) if record.WhichOneof("record_type") == "exit"]
        codes[about.display_name] = left.exit_code
    assert codes == {"FedAvg (weight_decay=0.0)": 0, "FedAvg (weight_decay=1e+38)": 1}


@pytest.mark.slow
def test_studies_of_one_folder_are_told_apart(clients: wafl.Federation, tmp_path: Path) -> None:
    """A study that was removed and begun again in the same folder does not continue the runs of the first."""
    asked, store = Trackers(mlflow=True), (tmp_path / "server").as_uri()
    study = tmp_path / "study"
    study.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", store)
        for about, count in (("first", 6), ("first", 6), ("second", 12)):
            (study / "about.json").write_text(about)
            train(clients, *make_trackers(asked, study, "wafl"), rounds=1)
            with pytest.MonkeyPatch.context() as read:
                read.delenv("MLFLOW_TRACKING_URI")
                assert len(mlflow_runs(store, "wafl")[1]) == count
