"""Tests of the code of the Flower examples, in this process; tests/test_example_pages.py runs their commands."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import wafl

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
QUICKSTART, HOSPITALS = EXAMPLES / "flower_quickstart", EXAMPLES / "flower_hospitals"

Load = Callable[[Path, str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """A module of an example, which finds its neighbors as it does when it is run."""
    before = set(sys.modules)

    def module(folder: Path, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(folder))
        return importlib.import_module(name)

    yield module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(EXAMPLES)):
            del sys.modules[name]


def test_no_example_is_left_out() -> None:
    assert {path for path in EXAMPLES.iterdir() if path.is_dir()} == {QUICKSTART, HOSPITALS, EXAMPLES / "gallery"}, (
        "test the new one here; tests/test_gallery.py has the gallery"
    )


# The quickstart


class Grid:
    """Flower's grid, with nodes in this process."""

    def __init__(self, client: ModuleType, nodes: int, config: dict[str, Any]) -> None:
        self.client, self.nodes, self.config = client, nodes, config
        self.metrics: list[dict[str, Any]] = []

    def get_node_ids(self) -> range:
        return range(1, self.nodes + 1)

    def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
        replies: list[Message] = []
        for message in messages:
            node = message.metadata.dst_node_id
            path = {"partition-id": node - 1, "num-partitions": self.nodes}
            kind = message.metadata.message_type
            reply = getattr(self.client, kind)(message, Context(1, node, path, RecordDict(), self.config))
            self.metrics.append({"kind": kind, **reply.content.metric_records["metrics"]})
            replies.append(reply)
        return replies


@pytest.mark.parametrize("private", [False, True])
def test_the_quickstart_learns_in_one_process(private: bool, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):  # outside a task of Flower's no message can be made
        monkeypatch.setattr(TaskIdentity, name, 1)
    described = tomllib.loads((QUICKSTART / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = {**described["config"], "num-server-rounds": 2, "local-epochs": 1, "batch-size": 64, "dp": private}
    assert described["components"] == {"serverapp": "server_app:app", "clientapp": "client_app:app"}
    server, client = load(QUICKSTART, "server_app"), load(QUICKSTART, "client_app")
    grid = Grid(client, 2, config)
    server.main(grid, Context(1, 0, {}, RecordDict(), config))
    trained = [metrics for metrics in grid.metrics if metrics["kind"] == "train"]
    tested = [metrics for metrics in grid.metrics if metrics["kind"] == "evaluate"]
    assert len(trained) == len(tested) == 4, "two rounds of two clients"
    assert trained[-1]["train_loss"] < trained[0]["train_loss"]
    assert trained[0]["transport-cost"] > 0.0, "examples are moved"
    assert tested[-1]["eval_acc"] > (0.2 if private else 0.6)
    assert tested[-1]["eval_acc_moved"] <= tested[-1]["eval_acc"]


# The hospitals


def test_hospitals_share_no_tumor_and_have_the_microscopes_they_are_said_to_have(load: Load) -> None:
    data = load(HOSPITALS, "data")
    hospitals = data.make_hospitals(0)
    assert [hospital.name for hospital in hospitals] == [f"hospital-{number}" for number in range(1, 6)]
    assert {len(hospital.y) for hospital in hospitals} == {113}
    assert [round(float(hospital.y.mean()), 2) for hospital in hospitals] == pytest.approx(data.MALIGNANT, abs=0.01)
    true = np.concatenate([h.measured / e**data._DIMENSION for h, e in zip(hospitals, (1, 1, 1, 1.1, 1), strict=True)])
    published = {tuple(row) for row in data._X.round(6)}
    assert len({tuple(row) for row in true.round(6)} & published) == 5 * 113
    area = list(data._TUMORS.feature_names).index("mean area")
    seen, magnified = (hospitals[4].seen(factor)[:, area] for factor in (1.0, 1.3))
    shown, was = (part * data._SCALE[area] + data._CENTER[area] for part in (magnified, seen))
    np.testing.assert_allclose(shown, 1.69 * was, rtol=1e-4)


def test_the_hospitals_example_reports_what_the_nodes_trained(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load(HOSPITALS, "run")

    def deploy(folder: Path, experiment: Any, hospitals: Any) -> None:
        """Train in this process, and save as the ServerApp does."""
        trained: dict[str, list[wafl.Run]] = run.train_here(experiment, hospitals, experiment.seeds)
        for name, runs in trained.items():
            path = folder / "run" / ("fedavg" if name == "FedAvg" else f"wafl-gamma={float(name.split()[-1])}")
            for seed, model in zip(experiment.seeds, runs, strict=True):
                model.save(path if seed == experiment.seeds[0] else path / f"seed-{seed}")

    monkeypatch.setattr(run, "deploy", deploy)
    monkeypatch.setattr(run, "DRAWS", range(2))
    assert run.main(["--rounds", "1", "--folder", str(tmp_path / "new")]) == 0
    text = capsys.readouterr().out
    assert "the models are the same, bit for bit" in text
    assert len(re.findall(r"^ *5, x 1\.3 ", text, re.MULTILINE)) == 2, "the fifth hospital is in both tables"
    assert run.main(["--folder", str(tmp_path / "new")]) == 1, "a folder that is taken"
    assert "choose another with --folder" in capsys.readouterr().err


@pytest.mark.slow
def test_the_hospitals_settings_are_chosen_again(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load(HOSPITALS, "data")
    monkeypatch.setattr(data, "TUNING", range(100, 101))
    data.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 30
    assert lines[0].startswith("FedAvg learning_rate ")


@pytest.mark.slow
def test_the_hospitals_train_on_flower(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = load(HOSPITALS, "run")
    monkeypatch.setattr(run, "DRAWS", range(2))
    status = run.main(["--rounds", "1", "--folder", str(tmp_path / "new")])
    message = capsys.readouterr()
    assert status == 0, message.err
    assert "the models are the same, bit for bit" in message.out
