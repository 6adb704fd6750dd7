"""``wafl flower``: apps and certificates from the command line, and what it refuses."""

from __future__ import annotations

import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wafl.cli.main import app
from wafl.flower.ops.loopback import QUIET, _tool  # pyright: ignore[reportPrivateUsage]
from wafl.flower.run_config import from_run_config
from wafl.runs.config import Tolerance
from wafl.runs.read import read_experiment

EXPERIMENT = """
name = "Ward_1.trial"
seeds = [0, 3]
[model]
kind = "mine:build"
[schedule]
rounds = 3
local_epochs = 2
[[methods]]
method = "WAFL"
gamma = [0.5, 2.0]
norm = inf
[[methods]]
method = "DRFA"
name = "drfa.slow"
weights_step = 0.001
"""


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["flower", *arguments])
    return result.exit_code, result.stdout, result.stderr


def flat(table: dict[str, object], before: str = "") -> dict[str, object]:
    """A run config as Flower passes it on: dotted keys in no particular order."""
    found: dict[str, object] = {}
    for key, value in table.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return dict(sorted(found.items(), reverse=True))


def test_an_app_describes_the_same_experiment_as_its_file(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    (tmp_path / "mine.py").write_text("def build(clients): ...\n")
    code, said, _ = run("app", str(tmp_path / "app"), str(file), "--set", "schedule.rounds=7")
    assert code == 0
    assert "flwr run" in said
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "ward-1-trial"
    assert (tmp_path / "app" / "mine.py").read_text() == (tmp_path / "mine.py").read_text()
    there = from_run_config(flat(project["tool"]["flwr"]["app"]["config"]))
    here = read_experiment(file, ["schedule.rounds=7", "engine=flower"])
    assert there.model_dump(exclude={"methods", "tolerance"}) == here.model_dump(exclude={"methods", "tolerance"})
    assert there.tolerance == Tolerance()
    by_name = {method.name or method.method: method for method in there.methods}
    assert by_name == {method.name or method.method: method for method in here.methods}


def test_an_app_without_a_file_is_a_trial_that_asks_every_client(tmp_path: Path) -> None:
    assert run("app", str(tmp_path / "app"))[0] == 0
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    trial = from_run_config(flat(project["tool"]["flwr"]["app"]["config"]))
    assert [method.method for method in trial.methods] == ["FedAvg", "WAFL"]
    assert trial.schedule.cohort is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["app", "{full}"], "exists already and is not empty: choose another folder"),
        (["app", "{new}", "{missing}"], "cannot be read"),
        (["app", "{new}", "--set", "schedule.rounds=3"], "--set changes an experiment file"),
        (["certificates", "{new}", "--node", "a/b"], "a/b"),
        (["certificates", "{new}", "--host", "not a host"], "not a host"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, arguments: list[str], message: str) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "kept.txt").write_text("mine")
    places = {"full": full, "new": tmp_path / "new", "missing": tmp_path / "missing.toml"}
    code, _, said = run(*(argument.format(**places) for argument in arguments))
    assert code == 2
    assert message in said
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "kept.txt"]


@pytest.mark.parametrize("command", ["app", "certificates"])
def test_without_flower_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flwr" or name.startswith("wafl.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, _, said = run(command, str(tmp_path / "new"))
    assert code == 2
    assert said == "Error: wafl.flower needs the package flwr: pip install 'wafl-learn[flower]'\n"


def test_certificates_are_made_once_and_nodes_added_later(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    code, said, _ = run("certificates", str(keys), "--host", "fl.example.org", "--node", "north")
    assert code == 0
    assert "--enable-supernode-auth" in said
    assert "flwr supernode register" in said
    before = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}
    assert run("certificates", str(keys), "--host", "fl.example.org", "--node", "east")[0] == 0
    assert {path: path.read_bytes() for path in before} == before
    assert len([path for path in keys.rglob("*") if path.is_file()]) == len(before) + 2
    for path in before:
        private = b"PRIVATE KEY" in path.read_bytes()
        assert not private or stat.S_IMODE(path.stat().st_mode) == 0o600, path
    code, _, said = run("certificates", str(keys), "--host", "fl.example.org", "--node", "north")
    assert code == 2
    assert "north" in said


@pytest.mark.processes
def test_a_superlink_without_certificates_refuses_to_start(tmp_path: Path) -> None:
    """Closed deployments rely on this rule of Flower."""
    command = [_tool("flower-superlink"), "--host", "127.0.0.1", "--port", "1"]
    done = subprocess.run(
        command, env={**QUIET, "FLWR_HOME": str(tmp_path), "PATH": ""}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "Certificates are required" in done.stdout + done.stderr
