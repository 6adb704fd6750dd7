"""``wafl evaluate`` on runs that ``wafl run`` saved."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("studies")
    arguments = ["run", "-m", "wafl", "-m", "fedavg", "--rounds", "2", "--seeds", "1", "--seed", "3", "--name", "few"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(output)])
    assert result.exit_code == 0, result.output
    return output / "few"


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["evaluate", *arguments], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_scores_equal_those_of_wafl_evaluate_on_the_same_clients(study: Path, tmp_path: Path) -> None:
    text = invoke(
        str(study), "--epsilon", "0.1,0.3", "--attacked", "0.4,0.8", "--steps", "5", "--output", str(tmp_path)
    )
    assert "epsilon 0.3 (pixels in [0, 1])" in text
    records = json.loads((tmp_path / "comparison.json").read_text())
    assert len(records) == 2 * (1 + 2 * 2)
    clients = wafl.load_dataset("digits").partition(20, labels_per_client=3, seed=3)
    for record in records:
        run = wafl.load_run(study / record["run"])
        epsilon = 0.3 if "epsilon 0.3" in record["attack"] else 0.1
        attack = None if record["attack"] == "none" else wafl.PGD(epsilon=epsilon, steps=5, bounds=(0.0, 1.0))
        score = wafl.evaluate(run, clients, attack=attack, attacked=record["attacked"])
        assert record["accuracy"] == pytest.approx(score.accuracy, abs=1e-9)
    with (tmp_path / "comparison.csv").open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == [record["run"] for record in records]


@pytest.mark.parametrize(
    "options",
    [
        ("--attack", "none"),
        ("--attack", "fgsm", "--norm", "2"),
        ("--attack", "wasserstein", "--radius", "0.2", "--norm", "2"),
        ("--attack", "rotation", "--severity", "0.2,0.4"),
        ("--attack", "label_shift"),
        ("--attack", "shot_noise"),
    ],
)
def test_every_kind_of_attack_writes_its_comparison(study: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    invoke(str(study / "wafl"), *options, "--attacked", "0.5", "--output", str(tmp_path))
    assert (tmp_path / "comparison.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere is not a folder: give a study, such as runs/digits, or one of its runs"),
        (("{study}", "--attack", "magic"), "unknown attack 'magic'"),
        (("{study}", "--attacked", "0.2;0.4"), "must be numbers with commas between them"),
        (("{study}", "--attacked", "1.5"), "attacked=1.5 is a share of the clients"),
        (("{study}", "--epsilon", "-1"), "epsilon=-1.0 must be finite and at least 0"),
        (("{study}", "--norm", "3"), "norm=3 must be one of 1, 2, inf"),
    ],
)
def test_bad_input_is_one_clear_line(study: Path, arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["evaluate", *(part.format(study=study) for part in arguments)])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
