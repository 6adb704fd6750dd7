"""What ``wafl run`` says while it trains, and about studies that were begun and left."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from wafl.callbacks import Callback, Moment
from wafl.cli import bars
from wafl.cli.main import app
from wafl.config.read import read_experiment
from wafl.studies.study import Study

TOML = """
name = "left"
seeds = [0, 1]
[data]
dataset = "digits"
num_clients = 4
iid = true
[schedule]
rounds = 3
cohort = 2
local_steps = 1
[attack]
kind = "none"
[[methods]]
method = "FedAvg"
"""


class Stop(Callback):
    def on_round(self, moment: Moment) -> None:
        if moment.record.round == 1:
            raise KeyboardInterrupt


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "left.toml"
    path.write_text(TOML)
    return path


def invoke(*arguments: Any) -> str:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return " ".join(done.output.split())


def test_a_file_gets_lines_that_count_the_rounds_of_one_run(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "PAUSE", 0.0)
    text = io.StringIO()
    study = Study.create(read_experiment(file, []), tmp_path / "study")
    shown = bars.Bars(study, Console(file=text))
    with shown.display:
        study.run([shown])
    lines = filter(None, text.getvalue().splitlines())  # rich 13 ends with an empty one
    assert all(", 2 seeds, " in line for line in text.getvalue().splitlines() if line)
    assert [line.partition(",")[0] for line in lines] == [f"FedAvg: {number} of 3 rounds" for number in (1, 2, 3)]


def test_lines_come_at_most_every_so_often_and_at_the_end(file: Path, tmp_path: Path) -> None:
    text = io.StringIO()
    study = Study.create(read_experiment(file, []), tmp_path / "study")
    study.run([bars.Bars(study, Console(file=text))])
    assert text.getvalue().count("\n") == 1


def test_running_an_interrupted_experiment_again_offers_to_resume_it(file: Path, tmp_path: Path) -> None:
    study = Study.create(read_experiment(file, []), tmp_path / "runs" / "left")
    with pytest.raises(KeyboardInterrupt):
        study.run([Stop()])
    output = invoke("run", file, "--output", tmp_path / "runs")
    assert "left is not finished: this same experiment was started there and left" in output
    assert f"wafl resume {tmp_path / 'runs' / 'left'}" in output.replace("- ", "-")
    other = invoke("run", file, "--output", tmp_path / "runs", "--set", "schedule.rounds=1")
    assert "an experiment with this name was started there" in other
    named = invoke("run", file, "--output", tmp_path / "runs", "--name", "left")
    assert "exists already: continue it with wafl resume" in named


def test_json_is_one_object_per_line_and_ends_with_the_results(file: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(file), "--json", "--output", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    *rounds, results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["event"], each["method"], each["round"], each["rounds"]) for each in rounds] == [
        ("round", "FedAvg", number, 3) for number in (1, 2, 3)
    ]
    saved = json.loads((tmp_path / "runs" / "left" / "results.json").read_text())
    assert results["methods"] == saved["methods"]
    lines = [json.loads(line) for line in (tmp_path / "runs" / "left" / "metrics.jsonl").read_text().splitlines()]
    last = [line["loss"] for line in lines if line["round"] == 2]
    assert rounds[-1]["loss"] == pytest.approx(sum(last) / 2)
    assert rounds[-1]["rounds_per_second"] > 0
    assert rounds[-1]["seconds_left"] == 0


def test_quiet_prints_nothing(file: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(file), "--quiet", "--output", str(tmp_path / "runs")])
    assert (done.exit_code, done.output) == (0, "")
    both = CliRunner().invoke(app, ["run", str(file), "--quiet", "--json", "--output", str(tmp_path / "runs")])
    assert both.exit_code == 2
    assert "exclude each other" in both.output


def test_a_line_of_a_method_has_speed_loss_accuracy_and_radius(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "PAUSE", 0.0)
    path = tmp_path / "ball.toml"
    path.write_text(TOML.replace('method = "FedAvg"', 'method = "WAFL"\ngamma = 1.0') + "[evaluation]\nevery = 1\n")
    output = invoke("run", path, "--output", tmp_path / "runs", "--serve")
    assert re.search(r"rounds/s, .*left, loss \d.*, accuracy \d+\.\d%, radius [\d.e-]+ WAFL: 2 of 3 rounds", output)
    assert re.search(r"is shown at http://127\.0\.0\.1:\d+/ while it trains", output)
