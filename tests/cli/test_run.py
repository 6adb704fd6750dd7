"""The command as a person uses it: real processes, real files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import wafl
from wafl.cli.main import app

SEVEN = ["WAFL", "FedAvg", "FedPGM", "FedFGSM", "FedRobust", "AFL", "DRFA"]
QUICK = ("--rounds", "2", "--seeds", "2")


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "wafl.cli", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120, env=environment())


def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    result = command(folder, "run", *QUICK)
    assert result.returncode == 0, result.stderr
    return folder / "runs" / "digits", result.stdout


@pytest.mark.processes
def test_run_trains_all_seven_and_prints_one_table(finished: tuple[Path, str]) -> None:
    _, text = finished
    for method in SEVEN:
        assert re.search(rf"^ *{method} .*±", text, re.MULTILINE)
    assert "epsilon 0.15 (pixels in [0, 1])" in text
    for column in ("clean", "20%", "40%", "60%", "80%", "worst", "seconds"):
        assert column in text


@pytest.mark.processes
def test_run_saves_numbers_figure_and_one_run_a_method(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    results = json.loads((folder / "results.json").read_text())
    assert list(results["methods"]) == SEVEN
    assert (folder / "figures" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    clients = wafl.load_dataset("digits").partition(num_clients=20, labels_per_client=3, seed=0)
    run = wafl.load_run(folder / "wafl")
    again = wafl.fit(
        wafl.models.mlr(clients), clients, wafl.WAFL(gamma=40.0, norm=float("inf")),
        rounds=2, cohort=10, local_epochs=2, learning_rate=0.3,
    )  # fmt: skip
    for name, value in again.params.items():
        torch.testing.assert_close(run.params[name], value, atol=1e-5, rtol=0)


@pytest.mark.processes
def test_one_method_with_its_own_gamma(tmp_path: Path) -> None:
    result = command(tmp_path, "run", "--method", "wafl", "--gamma", "0.5", "--norm", "2", "--name", "mine", *QUICK)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "runs" / "mine" / "fedavg").exists()
    method = wafl.load_run(tmp_path / "runs" / "mine" / "wafl").settings["method"]
    assert (method["adversary"]["gamma"], method["adversary"]["norm"]) == (0.5, 2)


@pytest.mark.processes
def test_a_second_run_goes_to_a_new_folder_and_a_taken_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    kept = tmp_path / "runs" / "digits" / "results.json"
    kept.write_text("mine")
    assert command(tmp_path, "run", "-m", "fedavg", *QUICK).returncode == 0
    assert (tmp_path / "runs" / "digits-2" / "results.json").exists()
    refused = command(tmp_path, "run", "-m", "fedavg", "--name", "digits", *QUICK)
    assert refused.returncode == 2
    assert "exists already: choose another --name" in refused.stderr
    assert kept.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "fedsgd"), "unknown method 'fedsgd': use one of wafl, fedavg"),
        (("--method", "fedavg", "--gamma", "1"), "FedAvg has no option 'gamma'"),
        (("--gamma", "-1"), "gamma=-1.0 must be positive"),
        (("--gamma", "1", "--radius", "1"), "give gamma or radius, not both"),
        (("--norm", "3"), "norm=3 must be one of 1, 2, inf"),
        (("--model", "resnet"), "unknown model 'resnet'"),
        (("--device", "cuda"), "use device='cpu'"),
        (("--labels-per-client", "11"), "labels_per_client=11 must lie in 1 .. 10"),
        (("--learning-rate", "0"), "learning_rate=0.0 must be positive"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", *QUICK, *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.processes
def test_ctrl_c_keeps_what_had_finished(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "wafl.cli", "run", "-m", "fedavg", "-m", "fedpgm", "--rounds", "60"]
    process = subprocess.Popen(
        line,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        # A background job ignores the interrupt, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    done = tmp_path / "runs" / "digits" / "fedavg" / "run.json"
    deadline = time.monotonic() + 60
    while not done.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Stopped. What had finished is in" in out.replace("\n", " ")
    assert wafl.load_run(done.parent).method == "FedAvg"


@pytest.mark.processes
def test_help_and_version() -> None:
    result = command(Path.cwd(), "--help")
    assert result.returncode == 0
    assert "holds up when their data shift" in " ".join(result.stdout.split())
    assert command(Path.cwd(), "--version").stdout.strip() == f"wafl {wafl.__version__}"


@pytest.mark.processes
def test_importing_the_library_needs_torch_and_numpy_only() -> None:
    code = (
        "import sys, torch, numpy, wafl; x = wafl.Federation.from_arrays([(torch.rand(9, 3), torch.arange(9) % 2)]);"
        "wafl.fit(wafl.models.mlr(x), x, wafl.WAFL(), rounds=1, local_steps=1);"
        "heavy = {'sklearn', 'matplotlib', 'rich', 'typer', 'safetensors', 'scipy', 'pooch', 'requests', 'PIL'};"
        "print(heavy & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "set()"
