"""Studies with clients that never train: who trains, and the three numbers everywhere."""

from __future__ import annotations

import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import wafl
from wafl.base.errors import ConfigError
from wafl.cli.main import app
from wafl.config.read import parse_experiment
from wafl.studies import study as studies
from wafl.studies.folder import to_toml

Study = tuple[Path, str]
"""A study's folder, and what `wafl run` printed."""
Halves = tuple[wafl.Federation, wafl.Federation]
BASE: dict[str, Any] = {
    "seeds": [3, 1],
    "data": {"num_clients": 8, "labels_per_client": 4, "preprocess": "zscore", "unseen": 0.3, "unseen_seed": 2},
    "schedule": {"rounds": 2, "cohort": 3, "local_steps": 2, "batch_size": 16, "learning_rate": 0.1},
    "methods": [{"method": "WAFL", "gamma": 2.0, "steps": 2}, {"method": "FedAvg"}],
    "attack": {"kind": "none"},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The folder of a study with unseen clients, and what `wafl run` printed."""
    folder = tmp_path_factory.mktemp("unseen")
    (folder / "e.toml").write_text(to_toml(parse_experiment(BASE, "here")))
    arguments = ["run", str(folder / "e.toml"), "--output", str(folder), "--name", "study"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return folder / "study", result.stdout


@pytest.fixture(scope="module")
def halves() -> Halves:
    clients = wafl.load_dataset("digits").partition(8, labels_per_client=4, preprocess="zscore")
    return clients.hold_out(0.3, seed=2)


def scores_of(folder: Path, halves: Halves) -> list[Any]:
    seen, unseen = halves
    return [wafl.evaluate(wafl.load_run(folder / "fedavg" / seed), seen, unseen=unseen) for seed in ("", "seed-1")]


def test_a_study_trains_on_the_seen_clients_alone(study: Study, halves: Halves) -> None:
    seen, _ = halves
    run = wafl.load_run(study[0] / "fedavg")
    expected = wafl.fit(wafl.models.mlr(seen), seen, wafl.FedAvg(), seed=3, **BASE["schedule"])
    assert len(run.client_weights) == seen.num_clients == 6
    assert all(torch.equal(value, expected.params[name]) for name, value in run.params.items())
    assert run.settings["data"]["held_out"] == [[0.3, 2, "seen"]]


def test_the_results_hold_the_three_numbers_the_gaps_and_the_worst_tenth(study: Study, halves: Halves) -> None:
    content = json.loads((study[0] / "results.json").read_text())
    row = content["methods"]["FedAvg"]
    scores, three = scores_of(study[0], halves), row["generalization"]
    assert row["clean"]["mean"] == three["test"]["mean"]
    parts: dict[str, list[Any]] = {
        "train": [score.train for score in scores],
        "test": scores,
        "unseen": [score.unseen for score in scores],
    }
    for name, each in parts.items():
        assert three[name]["seeds"] == pytest.approx([100.0 * score.accuracy for score in each])
        assert three[name]["worst_tenth"]["seeds"] == pytest.approx([100.0 * score.worst_tenth for score in each])
        assert three[name]["std"] == pytest.approx(statistics.stdev(three[name]["seeds"]))
        low, high = three[name]["interval"]
        assert low <= three[name]["mean"] <= high
    assert three["participation_gap"]["mean"] == pytest.approx(three["test"]["mean"] - three["unseen"]["mean"])
    assert three["out_of_sample_gap"]["mean"] == pytest.approx(three["train"]["mean"] - three["test"]["mean"])


def test_the_table_and_the_figure_of_a_study_show_them(study: Study) -> None:
    folder, text = study
    three = json.loads((folder / "results.json").read_text())["methods"]["FedAvg"]["generalization"]
    line = [line for line in text.splitlines() if "FedAvg" in line][-1].split()
    assert line[1:3] == [f"{three[part]['mean']:.1f}±{three[part]['std']:.1f}" for part in ("test", "unseen")]
    assert "Unseen: clients that took no part in training." in " ".join(text.split())
    tables = text[text.index(" method ") : text.index("Figures:")]  # lines of progress and of paths are not wrapped
    assert max(map(len, tables.splitlines())) <= 80
    assert "unseen: 2 clients with" in text
    assert (folder / "figures" / "unseen.png").stat().st_size > 1000


def test_evaluate_tests_the_unseen_clients_too(study: Study, halves: Halves, tmp_path: Path) -> None:
    folder, _ = study
    arguments = ["evaluate", str(folder), "--attack", "fgsm", "--attacked", "0.5", "--output", str(tmp_path)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert result.stdout.count("unseen clients") == 2
    assert max(map(len, result.stdout.splitlines())) <= 80
    with (tmp_path / "comparison.csv").open() as file:
        records = [row for row in csv.DictReader(file) if row["run"] == "fedavg" and row["attack"] == "none"]
    for record, score in zip(records, scores_of(folder, halves), strict=True):
        assert float(record["unseen_accuracy"]) == pytest.approx(score.unseen.accuracy)
        assert float(record["train_accuracy"]) == pytest.approx(score.train.accuracy)
        assert float(record["participation_gap"]) == pytest.approx(score.participation_gap)


def test_unseen_clients_may_be_shifted_and_accuracy_certified(tmp_path: Path) -> None:
    data = {"num_clients": 6, "labels_per_client": 4, "unseen": 0.3, "unseen_shift": "blur"}
    described = {
        "data": data,
        "schedule": {"rounds": 3, "local_steps": 2, "learning_rate": 0.1},
        "methods": [{"method": "FedAvg"}],
        "attack": {"kind": "none"},
        "evaluation": {"certified": 0.05},
    }
    study = studies.Study.create(parse_experiment(described, "here"), tmp_path / "study")
    results = study.run()
    row = results["methods"]["FedAvg"]
    run = wafl.load_run(tmp_path / "study" / "fedavg")
    seen, unseen = wafl.load_dataset("digits").partition(num_clients=6, labels_per_client=4).hold_out(0.3)
    everything = replace(unseen, test=unseen.train.joined(unseen.test))
    blurred = wafl.evaluate(run, everything, attack=wafl.shifts.blur(severity=1.0), attacked=1.0).accuracy
    assert row["generalization"]["unseen"]["mean"] == pytest.approx(100.0 * blurred)
    by_size = wafl.weights.by_examples()
    bound = wafl.certify(run, seen, radii=[0.05], metric="error", split="test", client_weights=by_size)
    assert row["certified"]["mean"] == pytest.approx(100.0 * (1.0 - bound[0].value))
    assert row["certified"]["mean"] < row["clean"]["mean"] == pytest.approx(100.0 * (1.0 - bound.loss))
    tested = CliRunner().invoke(
        app, ["evaluate", str(tmp_path / "study"), "--attack", "none", "--output", str(tmp_path)]
    )
    assert tested.exit_code == 0, tested.output
    (record,) = json.loads((tmp_path / "comparison.json").read_text())
    assert record["unseen_accuracy"] == pytest.approx(blurred), "other commands see the same clients"
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["report", str(tmp_path / "study")])
    assert shown.exit_code == 0, shown.output
    assert "certified" in (tmp_path / "study" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"num_clients": 4, "iid": True, "unseen_shift": "blur"}},
            "give data.unseen",
        ),
        ({"evaluation": {"certified": 0.1}, "engine": "flower"}, "leave it out of engine = 'flower'"),
    ],
)
def test_what_cannot_be_shifted_or_certified_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    described = {"data": {"num_clients": 4, "iid": True}, "methods": [{"method": "FedAvg"}], **changes}
    with pytest.raises(ConfigError, match=message):
        studies.Study.create(parse_experiment(described, "here"), tmp_path / "study")
