"""``wafl flower``: apps and certificates from the command line, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest
from flwr.cli.supernode.register import try_load_public_key
from typer.testing import CliRunner

from wafl.cli.main import app
from wafl.config.read import read_experiment
from wafl.flower.ops.loopback import QUIET, find_tool
from wafl.flower.wire.run_config import from_run_config
from wafl.train.trust.admission import REMOTE_CLIP, Tolerance

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
    values: dict[str, object] = {}
    for key, value in table.items():
        values |= flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return dict(sorted(values.items(), reverse=True))


def test_an_app_describes_the_same_experiment_as_its_file(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    (tmp_path / "mine.py").write_text("def build(clients): ...\n")
    code, output, _ = run("app", str(tmp_path / "app"), str(file), "--set", "schedule.rounds=7")
    assert code == 0
    assert "flwr run" in output
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "ward-1-trial"
    assert (tmp_path / "app" / "mine.py").read_text() == (tmp_path / "mine.py").read_text()
    on_nodes = from_run_config(flat(project["tool"]["flwr"]["app"]["config"]))
    here = read_experiment(file, ["schedule.rounds=7", "engine=flower"])
    settled = {"methods", "tolerance", "caps"}
    assert on_nodes.model_dump(exclude=settled) == here.model_dump(exclude=settled)
    assert on_nodes.caps == here.caps.settled(remote=True)
    assert on_nodes.tolerance == Tolerance(clip=REMOTE_CLIP)
    by_name = {method.name or method.method: method for method in on_nodes.methods}
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
        (["certificates", "{new}", "--renew"], "ca.crt is missing: make it with wafl flower certificates"),
        (["certificates", "{new}", "--renew", "--host", "a.org", "--node", "n"], "renew one after the other"),
        (["deploy", "{new}", "{full}"], "ca.crt is missing: make it with wafl flower certificates"),
        (["status", "{full}"], "has no nodes.json: only a study with clients on Flower's nodes has one"),
        (["digest", "{full}"], "contains no pyproject.toml: pass the folder of an app"),
        (["fingerprint", "{full}/kept.txt"], "kept.txt is not a public key of a node"),
        (["node", "--allow-app", "abc"], "app 'abc': give its digest, 64 digits 0-9a-f"),
        (["node", "--insecure"], "which apps does this node run?"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, arguments: list[str], message: str) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "kept.txt").write_text("mine")
    paths = {"full": full, "new": tmp_path / "new", "missing": tmp_path / "missing.toml"}
    code, _, errors = run(*(argument.format(**paths) for argument in arguments))
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "kept.txt"]


@pytest.mark.parametrize("command", ["app", "certificates"])
def test_without_flower_the_error_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flwr" or name.startswith("wafl.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, _, errors = run(command, str(tmp_path / "new"))
    assert code == 2
    assert errors == "Error: wafl.flower needs the package flwr: pip install 'wafl-learn[flower]'\n"


def test_certificates_say_what_to_do_next_and_nodes_are_added_later(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    code, output, _ = run("certificates", str(keys), "--host", "fl.example.org", "--node", "north")
    assert code == 0
    assert "flwr supernode register" in output
    assert "wafl flower deploy" in output
    before = len(list(keys.rglob("*")))
    assert run("certificates", str(keys), "--host", "fl.example.org", "--node", "east")[0] == 0
    assert len(list(keys.rglob("*"))) == before + 2


def test_the_fingerprint_of_a_key_is_that_of_the_key_that_flower_registers(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert run("certificates", str(keys), "--node", "north", "--node", "east")[0] == 0
    files = [keys / "keys" / f"{name}.pub" for name in ("north", "east")]
    registered = [sha256(try_load_public_key(file)).hexdigest() for file in files]
    listed = run("fingerprint", *map(str, files))[1].splitlines()
    assert listed == [f"{digest} {file}" for digest, file in zip(registered, files, strict=True)]


def test_renewal_says_what_to_do_next(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    assert run("certificates", keys, "--host", "fl.example.org", "--node", "north")[0] == 0
    code, output, _ = run("certificates", keys, "--renew")
    assert code == 0
    assert "restart the SuperLink and the proxy" in output
    assert "ca.crt" not in output, "nodes keep theirs"
    assert "Copy the new ca.crt to every node" in run("certificates", keys, "--renew", "--days", "9999")[1]
    code, output, _ = run("certificates", keys, "--renew", "--node", "north")
    assert code == 0
    assert "flwr supernode register" in output
    assert "flwr supernode unregister" in output


def test_a_deployment_is_for_a_name_that_the_certificate_has(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    assert run("certificates", keys, "--host", "fl.example.org", "--node", "north", "--node", "east")[0] == 0
    code, _, output = run("deploy", str(tmp_path / "out"), keys, "--host", "other.example.org")
    assert code == 2
    assert "is not in the server's certificate, which is for fl.example.org, localhost, 127.0.0.1" in output
    code, _, output = run("deploy", str(tmp_path / "out"), keys)
    assert code == 2
    assert "which apps do nodes run?" in output
    code, output, _ = run("deploy", str(tmp_path / "out"), keys, "--any-app")
    assert code == 0
    assert [path.name for path in sorted((tmp_path / "out" / "nodes").iterdir())] == ["east", "north"]
    assert "--superlink fl.example.org:8000" in (tmp_path / "out/nodes/north/supernode.service").read_text()


@pytest.mark.processes
def test_a_superlink_without_certificates_refuses_to_start(tmp_path: Path) -> None:
    """Closed deployments rely on this rule of Flower."""
    command = [find_tool("flower-superlink"), "--host", "127.0.0.1", "--port", "1"]
    done = subprocess.run(
        command, env={**QUIET, "FLWR_HOME": str(tmp_path), "PATH": ""}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "Certificates are required" in done.stdout + done.stderr


FLWR = """#!/bin/sh
if [ "$1" = run ]; then
    echo "asked: $*"
    [ "$2" = nothing ] && exit 0
    echo "Successfully started run 17"
    printf 'c01 \\033[2J\\n'
else
    echo '{{"success": true, "runs": [{{"status": "{status}"}}]}}'
fi
"""


@pytest.mark.parametrize(
    ("status", "code"), [("finished:completed", 0), ("finished:failed", 1), ("finished:stopped", 1)]
)
def test_a_flower_run_that_failed_ends_with_a_failure(
    status: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "stand-in"
    stand_in.write_text(FLWR.format(status=status))
    stand_in.chmod(0o755)
    monkeypatch.setattr("wafl.flower.ops.loopback.find_tool", lambda _: str(stand_in))
    ended, output, complaint = run("run", "my-app", "mine", "-c", "schedule.rounds=5", "-c", "seeds='[1]'")
    assert ended == code
    assert "asked: run my-app mine --stream --run-config=schedule.rounds=5 seeds='[1]'" in output
    assert "c01 ?[2J" in output
    assert ("ended as" in complaint) == (code == 1)
    ended, _, complaint = run("run", "nothing")
    assert ended == 2
    assert "started no Flower run" in complaint
