"""What the commands print about models without a proof, and about the next of few clients."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from wafl.cli.main import app

MODELS = """
import torch


class Own(torch.nn.Module):
    def __init__(self, declared):
        super().__init__()
        self.last = torch.nn.Linear(64, 10)
        if declared:
            self.lipschitz = 20.0

    def forward(self, x):
        return self.last(x.flatten(1).clamp_max(1e9))


def declared(clients):
    return Own(True)


def unknown(clients):
    return Own(False)
"""
EXPERIMENT = """
methods = [{{method = "FedAvg"}}]
model = {model}
schedule = {{rounds = 1, local_steps = 1, learning_rate = 0.1}}
data = {{num_clients = 10, labels_per_client = 10, sizes = [20, 2], unseen = 0.5}}
attack = {{kind = "none"}}
{more}
"""
REASON = "this model has no proof, because its Lipschitz constant is only attested (model.lipschitz)"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Generator[str]:
    """A module of your own in the working folder, whose name no other test uses."""
    monkeypatch.chdir(tmp_path)
    name = "unproven_" + re.sub(r"\W", "_", request.node.name)
    Path(f"{name}.py").write_text(MODELS)
    yield name
    sys.modules.pop(name, None)


def call(*words: str) -> Any:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, [*words])


def train(model: str, more: str = "") -> str:
    Path("exp.toml").write_text(EXPERIMENT.format(model=model, more=more))
    result = call("run", "exp.toml", "--name", "study")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_study_of_a_model_without_a_proof_shows_an_estimate(module: str) -> None:
    text = train(f'{{kind = "{module}:declared"}}', "evaluation = {certified = 0.05}")
    above = text[: text.index("method")].splitlines()
    first = next(line for line in above if line.startswith("Not proven"))
    assert first == f"Not proven: {REASON}; the numbers below are estimates and can be above the truth."
    assert re.search(r"^ *method .* estimate ", text, re.MULTILINE)
    assert "certified" not in text
    assert "Estimate: the lowest accuracy on any data within 0.05 of the clients' test examples" in " ".join(
        text.split()
    )
    row = json.loads(Path("runs/study/results.json").read_text())["methods"]["FedAvg"]
    assert row["unproven"] == REASON.split("because ")[1]
    assert ("estimate" in row, "certified" in row) == (True, False)
    shown = call("report", "runs/study", "--quick", "--trust")
    assert shown.exit_code == 0, shown.output
    page = Path("runs/study/report.html").read_text(encoding="utf-8")
    assert f"Not proven: {REASON}" in page
    assert ">estimate<" in page
    assert ">certified<" not in page


def test_a_study_of_a_model_with_a_proof_shows_what_is_certified(module: str) -> None:
    text = train('{kind = "mlr"}', "evaluation = {certified = 0.05}")
    assert re.search(r"^ *method .* certified ", text, re.MULTILINE)
    assert "Not proven" not in text
    assert "unproven" not in Path("runs/study/results.json").read_text()


def test_theory_and_certify_say_that_a_model_has_no_proof(module: str) -> None:
    train(f'{{kind = "{module}:unknown"}}')
    result = call("theory", "runs/study", "--radii", "0.1", "--trust")
    assert result.exit_code == 0, result.output
    name, first = [line for line in result.stdout.splitlines() if line.strip()][:2]
    assert name == "fedavg:"
    assert first.startswith("Not proven: this model has no proof, because `clamp_max` at `self.forward` has")
    assert " estimate " in result.stdout
    assert "certified" not in result.stdout
    written = call("certify", "runs/study", "--trust", "--radii", "0.1")
    assert written.exit_code == 0, written.output
    assert "Not proven: this model has no proof, because `clamp_max` at" in written.stdout
    assert "certified" not in written.stdout
    said = r"If the clients' data move by at most 0\.1 \(l2, .*\), the expected loss is at most .* This is an estimate"
    assert re.search(said, written.stdout)
    checked = call("verify", "certificate.json", "--model", "runs/study", "--data", "runs/study", "--trust")
    assert (checked.exit_code, checked.stdout.split(":")[0]) == (3, "ATTESTED")
    assert "Nothing here is proven, because `clamp_max` at" in " ".join(checked.stdout.split())


def test_the_next_of_five_clients_has_the_confidence_that_they_support(module: str) -> None:
    train('{kind = "mlr"}')
    printed = call("next-client", "runs/study", "--metric", "error")
    assert printed.exit_code == 0, printed.output
    for what, level in (("distribution", 66), ("examples", 83)):
        sentence = rf"the next client's certified error rate on its {what} is at most 0\.\d+ with {level}% confidence, "
        assert re.search(sentence + "the most that 5 clients support", printed.stdout)
    (error,) = re.findall(r"error rate on its examples is at most (\S+) with", printed.stdout)
    first = printed.stdout.splitlines()[0]
    (share,) = re.findall("^At the next client, at most (.*)% of its examples are misclassified, with 83% conf", first)
    assert 100.0 * float(error) - 1e-9 <= float(share) < 100.0 * float(error) + 0.1
    assert first.endswith("confidence.")
    refused = call("next-client", "runs/study", "--metric", "error", "--confidence", "0.95")
    assert refused.exit_code == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.strip().splitlines()
    assert line.endswith("support at most 83% confidence (5/6) about the next client's examples; 95% takes 19 clients")
    asked = call("next-client", "runs/study", "--metric", "error", "--confidence", "0.83")
    assert "on its examples is at most" in asked.stdout
    assert "on its distribution: 5 held-out clients support at most 66% confidence" in asked.stdout


def test_the_next_of_five_clients_as_a_file_is_verified_at_the_confidence_it_says(module: str) -> None:
    train('{kind = "mlr"}')
    written = call("next-client", "runs/study", "--metric", "error", "-o", "next.json")
    assert written.exit_code == 0, written.output
    page = " ".join(Path("next.md").read_text().split())
    assert "on its distribution, with a probability of at least 0.666666, the most that 5 clients" in page
    rows = json.loads(Path("next.json").read_text())["claim"]["rows"]
    assert [row.get("confidence") for row in rows] == [None, 0.666666]
    checked = call("verify", "next.json", "--model", "runs/study", "--data", "runs/study")
    assert checked.exit_code == 0, checked.output
    assert re.search(r"At the next client, at most \S+% of future examples are misclassified, with 66%", checked.stdout)
    assert re.search(r"radius 0, next +recomputed +at most 0\.\d+ with probability 0\.666666", checked.stdout)
    refused = call("next-client", "runs/study", "--metric", "error", "-o", "other.json", "--confidence", "0.8")
    assert (refused.exit_code, Path("other.json").exists()) == (2, False)
    assert "at most 66% confidence (4/6) about the next client's distribution; 80% takes 9 clients" in refused.output
