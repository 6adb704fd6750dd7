"""``wafl run`` as a person uses it: real processes, real files."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

import wafl
from tests.cli.commands import every_command
from wafl.base.options import EachRound, Option, Range
from wafl.cli.main import app
from wafl.cli.method_options import method_options
from wafl.config.demo import CHOSEN, demo_experiment
from wafl.config.method_keys import PARTS
from wafl.config.plan import make_plan
from wafl.objectives.ball.cost_matrix import CostMatrix
from wafl.theory.population.levels import USUAL, supported

SEVEN = ["WAFL", "FedAvg", "FedPGM", "FedFGSM", "FedRobust", "AFL", "DRFA"]
QUICK = ("--rounds", "2", "--seeds", "2")


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "wafl", *arguments]
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
def test_run_trains_all_seven_methods_and_prints_one_table(finished: tuple[Path, str]) -> None:
    _, text = finished
    for method in SEVEN:
        assert re.search(rf"^ *{method} .*±", text, re.MULTILINE)
    words = " ".join(text.split())
    assert "Attack: l_inf PGD, epsilon 0.15 (pixels in [0, 1]), 20 steps, within [0, 1]." in words
    assert "within 0.05 of the clients' test examples (l_inf, W_2, pixels in [0, 1])" in words
    assert "40% all unseen method clean attacked attacked certified clients worst seconds" in words


@pytest.mark.processes
def test_each_of_the_three_commands_that_a_run_ends_with_works(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, text = finished
    commands = re.findall(r"^  wafl (.*?) +# ", text.split("Next:")[1], re.MULTILINE)
    quick_and_shown = {
        "report": (["--quick"], "Report: runs/digits/report.html"),  # a whole page takes minutes
        "certify": (["--radii", "0.5"], "Written: certificate.json"),
        "next-client": ([], "the next client's certified error rate"),
    }
    assert [line.split()[0] for line in commands] == [*quick_and_shown]
    monkeypatch.chdir(folder.parents[1])
    for line, (quick, shown) in zip(commands, quick_and_shown.values(), strict=True):
        result = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, [*shlex.split(line), *quick])
        assert result.exit_code == 0, result.output
        assert shown in result.stdout


@pytest.mark.processes
def test_run_saves_numbers_a_figure_and_one_run_per_method(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    results = json.loads((folder / "results.json").read_text())
    assert list(results["methods"]) == SEVEN
    assert (folder / "figures" / "unseen.png").read_bytes().startswith(b"\x89PNG")
    clients, _ = wafl.load_dataset("digits").partition(num_clients=40, labels_per_client=3, seed=0).hold_out(0.5)
    run = wafl.load_run(folder / "wafl")
    schedule = {"rounds": 2, "local_steps": 1, "batch_size": 32, "learning_rate": 1.0}
    again = wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(**CHOSEN["WAFL"]), **schedule)
    for name, value in again.params.items():
        torch.testing.assert_close(run.params[name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "fedsgd"), "unknown method 'fedsgd': did you mean"),
        (
            ("--method", "fedavg", "--gamma", "1"),
            "FedAvg has no option 'gamma': choose a method that has it, --method wafl",
        ),
        (("--mu", "1"), "WAFL has no option 'mu': choose a method that has it, --method fedprox"),
        (("--beta1", "0.5"), "WAFL has no option 'beta1': choose a method that has it, --method fedadam or fedyogi"),
        (("--bounds", "1,0"), "bounds=(1.0, 0.0) must be (low, high)"),
        (("--norm", "3"), "norm=3 must be one of 1, 2, inf"),
        (("--model", "resnet"), "unknown model 'resnet'"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", *QUICK, *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def trained(tmp_path: Path, *arguments: str) -> dict[str, wafl.Run]:
    """The first seed of each method that one round of ``wafl run`` trained."""
    result = CliRunner().invoke(app, ["run", "--rounds", "1", "--seeds", "1", "--output", str(tmp_path), *arguments])
    assert result.exit_code == 0, result.output
    return {path.parent.name: wafl.load_run(path.parent) for path in tmp_path.rglob("run.json")}


OPTIONS = {name: owners for name, owners in method_options().items() if name not in (*PARTS, "epsilon")}
"""By name, the methods that have each option; ``--epsilon`` belongs to the test attack."""


def is_half(option: Option) -> bool:
    """Whether 0.5 is one of its values."""
    limits = option.limits.range if isinstance(option.limits, EachRound) else option.limits
    return isinstance(limits, Range) and limits.holds(0.5)


FLAGS: dict[str, tuple[str, list[str], Any]] = {
    **{
        name: (next(iter(owners)), ["0.5"], 0.5)
        for name, owners in OPTIONS.items()
        if all(is_half(option) for option in owners.values())
    },
    "power": ("WAFL", ["1"], 1), "label_cost": ("WAFL", ["inf"], "inf"), "strict": ("WAFL", [], True),
    "norm": ("FedPGM", ["2"], 2), "steps": ("FedPGM", ["3"], 3), "restarts": ("FedPGM", ["2"], 2),
    "random_start": ("FedPGM", [], True), "bounds": ("FedFGSM", ["-1,2.5"], [-1.0, 2.5]),
    "space": ("FedFGSM", ["0"], "0"), "cost_matrix": ("WAFL", [",".join(["2"] * 64)], repr(CostMatrix([2.0] * 64))),
    "samples": ("SinkhornDRO", ["3"], 3), "t": ("TERM", ["-2"], -2.0),
}  # fmt: skip
"""An option, a method that has it, what follows its flag, and what the method then has."""


def test_every_option_of_every_method_is_a_flag_except_those_that_wafl_run_has_itself() -> None:
    assert set(FLAGS) == set(OPTIONS), "add what follows the flag of an option that is no number"
    for owners in method_options().values():
        kinds = {(option.kind, type(option.limits)) for option in owners.values()}
        assert len(kinds) == 1, "one flag cannot have two types"


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_reaches_the_method_that_has_it(tmp_path: Path, name: str) -> None:
    method, texts, expected = FLAGS[name]
    more = {"strict": ["--radius", "0.5", "--norm", "2"], "restarts": ["--random-start"]}.get(name, [])
    (run,) = trained(tmp_path, "-m", method, f"--{name.replace('_', '-')}", *texts, *more).values()
    described = run.settings["method"]
    parts = [described["objective"], described["client_weights"], described["server"], described["local"]]
    values = [part for part in parts if part] + [described["server"].get("optimizer") or {}]
    field = "step_size" if name == "weights_step" else name
    assert expected in [part[field] for part in values if field in part]


def test_help_says_which_methods_have_an_option_and_what_it_is_for() -> None:
    text = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "1000"}).stdout
    options = method_options()
    assert options.pop("epsilon")
    for name, owners in options.items():
        (line,) = [line for line in text.splitlines() if re.search(rf" --{name.replace('_', '-')} ", line)]
        for method, option in owners.items():
            assert re.search(rf"\b{method}\b", line), (name, method)
            assert option.doc
            assert option.doc[1:].split(";")[0] in line
    assert re.search(r"--epsilon .*The size of the test attack", text), "its meaning is not FedPGM's epsilon"


def test_flags_of_methods_are_refused_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text("methods = [{method = 'FedProx', rounds = 1, local_steps = 1}]")
    for flag in (["--mu", "0.1"], ["--bounds", "0,1"], ["--strict"], ["--rounds", "3"]):
        result = CliRunner().invoke(app, ["run", str(tmp_path / "exp.toml"), *flag])
        assert result.exit_code == 2
        assert f"{flag[0]} cannot be used with an experiment file: change the file, or use --set" in result.stderr


def test_every_command_and_every_parameter_has_a_help_text() -> None:
    commands = every_command(typer.main.get_command(app))
    assert len(commands) > 10
    for path, command in commands.items():
        assert command.help, path
        for parameter in command.params:
            assert getattr(parameter, "help", None), (path, parameter.name)


@pytest.mark.processes
def test_help_describes_the_package_and_version_prints_its_number() -> None:
    result = command(Path.cwd(), "--help")
    assert result.returncode == 0
    assert "holds up when their data shift" in " ".join(result.stdout.split())
    assert command(Path.cwd(), "--version").stdout.strip() == f"wafl {wafl.__version__}"


def test_run_says_that_the_ball_did_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With power 1 and a gamma above every slope, no example moves."""
    monkeypatch.chdir(tmp_path)
    ball = ["--method", "wafl", "--norm", "2", "--power", "1", "--gamma", "1000"]
    result = CliRunner().invoke(app, ["run", *ball, "--rounds", "2", "--seeds", "1"], env={"COLUMNS": "300"})
    assert result.exit_code == 0, result.output
    assert "Warning: no example moved in 2 rounds: with power=1" in result.output


def test_the_demo_holds_out_enough_clients_for_95_percent() -> None:
    unseen = make_plan(demo_experiment(methods=["FedAvg"])).unseen
    assert unseen is not None
    assert supported(None, unseen.num_clients, own_sampling=False) == USUAL == 0.95
