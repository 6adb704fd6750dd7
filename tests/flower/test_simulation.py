"""Flower's own simulation, in processes: methods end with the parameters of the embedded engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from wafl.config.read import parse_experiment
from wafl.results.saved import load_run
from wafl.studies.study import Study

WAFL = str(Path(sys.executable).parent / "wafl")
METHODS = """
[[methods]]
method = "WAFL"
gamma = [0.5, 2.0]
[[methods]]
method = "DRFA"
[[methods]]
method = "SCAFFOLD"
[[methods]]
method = "own:method"
options = { mu = [0.5, 2.0], name = "[mine]" }
"""
MODULE = """
import wafl


def method(mu: float, name: str) -> wafl.Method:
    assert name == "[mine]"
    objective = wafl.objectives.wasserstein(gamma=1.0)
    return wafl.Method("own", objective, wafl.weights.uniform(), local=wafl.local.prox(mu))
"""
FILE = """
name = "study"
seeds = [0, 1]
[data]
num_clients = 5
labels_per_client = 3
[schedule]
rounds = {rounds}
cohort = 4
local_epochs = 1
learning_rate = 0.1
momentum = 0.5
[attack]
steps = 2
[evaluation]
attacked = [0.5]
[tolerance]
clip = inf  # on Flower, a client whose update is far longer than the others' is shortened
[flower]
nodes = 3
{methods}
"""


def both(folder: Path) -> tuple[Path, Path]:
    """The folders of two studies of the same file, embedded and simulated."""
    file = folder / "experiment.toml"
    file.write_text(FILE.format(rounds=3, methods=METHODS))
    (folder / "own.py").write_text(MODULE)
    for engine in ("embedded", "flower-sim"):
        command = [WAFL, "run", str(file), "--engine", engine, "--output", str(folder), "--name", engine]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "embedded", folder / "flower-sim"


def difference(one: Path, other: Path) -> float:
    runs = sorted(path.parent.relative_to(one) for path in one.rglob("run.json"))
    assert runs == sorted(path.parent.relative_to(other) for path in other.rglob("run.json"))
    largest = 0.0
    for run in runs:
        a, b = load_run(one / run), load_run(other / run)
        assert torch.equal(a.client_weights, b.client_weights) or largest > 0, run
        largest = max(largest, *(float((a.params[name] - b.params[name]).abs().max()) for name in a.params))
    return largest


@pytest.mark.slow
def test_methods_end_as_embedded_bit_for_bit(tmp_path: Path) -> None:
    """The grid of this process has every method: here, what a sweep, a client's memory and your own code need."""
    here, on_nodes = both(tmp_path)
    assert difference(here, on_nodes) == 0.0
    one, other = (json.loads((study / "results.json").read_text()) for study in (here, on_nodes))
    for name, row in one["methods"].items():
        assert row["clean"] == other["methods"][name]["clean"], name
        assert row["attacked"] == other["methods"][name]["attacked"], name


@pytest.mark.slow
def test_an_interrupted_simulation_resumes_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(FILE.format(rounds=6, methods='[[methods]]\nmethod = "FedRobust"\n'))
    command = [WAFL, "run", str(file), "--output", str(tmp_path), "--name"]
    subprocess.run([*command, "whole"], check=True, capture_output=True, timeout=100)
    with subprocess.Popen([*command, "cut", "--engine", "flower-sim"], stdout=subprocess.PIPE) as process:
        metrics = tmp_path / "cut" / "metrics.jsonl"
        while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 4):
            assert process.poll() is None
        process.terminate()
        process.wait(60)
    assert len(metrics.read_text().splitlines()) < 12
    subprocess.run([WAFL, "resume", str(tmp_path / "cut")], check=True, capture_output=True, timeout=300)
    assert difference(tmp_path / "whole", tmp_path / "cut") == 0.0


def test_more_nodes_than_clients_are_refused_before_anything_starts(tmp_path: Path) -> None:
    from wafl.flower.ops.app import simulate

    content = {
        "engine": "flower-sim",
        "data": {"num_clients": 2, "iid": True},
        "schedule": {"rounds": 1, "local_steps": 1},
        "methods": [{"method": "FedAvg"}],
        "flower": {"nodes": 3},
    }
    study = Study.create(parse_experiment(content, "here"), tmp_path / "study")
    with pytest.raises(ValueError, match=r"flower.nodes=3 is larger than the number of clients, 2: lower it"):
        simulate(study)
    assert not (tmp_path / "study" / "flower").exists()
