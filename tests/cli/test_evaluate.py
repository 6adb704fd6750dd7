"""``wafl evaluate`` on runs that ``wafl run`` saved."""

from __future__ import annotations

import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import wafl
from wafl.attacks import ATTACKS, Attack
from wafl.attacks.autoattack import autoattack_package
from wafl.base.extras import Package
from wafl.cli import tables
from wafl.cli.main import app
from wafl.config.known import known_attacks
from wafl.config.read import parse_experiment
from wafl.shifts import SHIFTS
from wafl.studies.study import Study

INF = float("inf")


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
    clients, _ = wafl.load_dataset("digits").partition(40, labels_per_client=3, seed=3).hold_out(0.5)
    for record in records:
        run = wafl.load_run(study / record["run"])
        epsilon = 0.3 if "epsilon 0.3" in record["attack"] else 0.1
        attack = None if record["attack"] == "none" else wafl.PGD(epsilon=epsilon, steps=5)
        score = wafl.evaluate(run, clients, attack=attack, attacked=record["attacked"])
        assert record["accuracy"] == pytest.approx(score.accuracy, abs=1e-9)
        assert record["attack"] == score.attack
    with (tmp_path / "comparison.csv").open() as file:
        assert [row["run"] for row in csv.DictReader(file)] == [record["run"] for record in records]


@pytest.mark.parametrize("command", ["certify", "next-client", "prediction-sets", "export --format pt2"])
def test_a_command_about_one_run_names_the_first_run_of_a_study(study: Path, command: str) -> None:
    name, *options = command.split()
    result = CliRunner().invoke(app, [name, str(study), *options])
    assert result.exit_code == 2
    assert f"is a study with several runs: pass one of them, such as {study / 'wafl'}" in result.output.replace(
        "\n", ""
    )


@pytest.mark.parametrize(
    ("options", "attack"),
    [
        ((), wafl.PGD(0.1)),
        (("--bounds", "none"), wafl.PGD(0.1, bounds=None)),
        (("--bounds", "-0.1,1.1", "--norm", "2"), wafl.PGD(0.1, norm=2, bounds=(-0.1, 1.1))),
        (("--attack", "wasserstein"), wafl.WassersteinShift(1.0)),
        (
            ("--attack", "wasserstein", "--norm", "inf", "--bounds", "none"),
            wafl.WassersteinShift(1.0, INF, bounds=None),
        ),
        (("--attack", "fgsm", "--norm", "2"), wafl.FGSM(0.1, norm=2)),
        (("--attack", "gaussian_noise"), wafl.shifts.gaussian_noise(severity=0.5)),
        (("--attack", "label_shift", "--severity", "0.2"), wafl.shifts.label_shift(severity=0.2)),
    ],
    ids=lambda value: " ".join(value) or "default" if isinstance(value, tuple) else "",
)
def test_the_command_and_python_mean_the_same_attack_by_default(
    study: Path, tmp_path: Path, options: tuple[str, ...], attack: Attack
) -> None:
    """The same number and the same label, to the last character: bounds, norm and steps."""
    invoke(str(study / "wafl"), *options, "--attacked", "0.5", "--output", str(tmp_path))
    _, record = json.loads((tmp_path / "comparison.json").read_text())
    clients, _ = wafl.load_dataset("digits").partition(40, labels_per_client=3, seed=3).hold_out(0.5)
    score = wafl.evaluate(wafl.load_run(study / "wafl"), clients, attack=attack, attacked=0.5)
    assert record["accuracy"] == pytest.approx(score.accuracy, abs=1e-9)
    assert record["attack"] == score.attack


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere is not a folder: pass a study, such as runs/digits, or one of its runs"),
        (
            ("{study}", "--attack", "magic"),
            "unknown attack 'magic': use one of none, pgd, fgsm, wasserstein,",
        ),
        (("{study}", "--attack", "pdg"), "unknown attack 'pdg' (did you mean 'pgd'?): use one of none, pgd,"),
        (("{study}", "--attack", "fgsm", "--steps", "3"), "--steps is an option of --attack pgd, not of fgsm"),
        (
            ("{study}", "--attack", "none", "--epsilon", "1"),
            "is an option of --attack pgd, fgsm,",
        ),
        (
            ("{study}", "--attack", "autoattack", "--space", "0"),
            "is an option of --attack pgd, fgsm,",
        ),
        (("{study}", "--attack", "label_shift", "--bounds", "none"), "not of label_shift"),
        (("{study}", "--attacked", "0.2;0.4"), "must be numbers with commas between them"),
        (("{study}", "--attacked", "1.5"), "attacked=1.5 is a share of the clients"),
        (("{study}", "--epsilon", "-1"), "epsilon=-1.0 must be finite and at least 0"),
        (("{study}", "--norm", "3"), "norm=3 must be one of 1, 2, inf"),
        (("{study}", "--bounds", "0"), "bounds='0' must be data, none or two numbers, LOW,HIGH"),
    ],
)
def test_bad_input_is_one_clear_line(study: Path, arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["evaluate", *(part.format(study=study) for part in arguments)])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


FLAGS = {"norm": ("2", 2.0), "bounds": ("0,0.5", (0.0, 0.5)), "space": ("0", "0")}
"""Values of the flags that are not plain numbers: as text, and as the attack has them."""


@pytest.mark.parametrize("kind", known_attacks())
def test_every_flag_of_an_attack_reaches_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (package := known_attacks()[kind].package) is not None:
        pytest.importorskip(package.module)
    monkeypatch.setattr("wafl.evaluation.compare.compare", lambda runs, clients, attacks, **_: made.extend(attacks))
    monkeypatch.setattr("wafl.cli.commands.saved_runs.load_seeds", lambda run: {})
    monkeypatch.setattr("wafl.cli.commands.saved_runs.seen_and_unseen", lambda *_: (None, None))
    for name in known_attacks()[kind].options:
        made: list[Any] = []
        text, value = FLAGS.get(name, ("1", 1))
        bounds = () if name in ("bounds", "space") or kind == "label_shift" else ("--bounds", "0,1")
        flag = f"--{name.replace('_', '-')}"
        CliRunner().invoke(app, ["evaluate", "here", "--attack", kind, flag, text, *bounds])  # nothing to print
        _, attack = made
        assert type(attack) is {**ATTACKS, **SHIFTS}[kind]
        assert getattr(attack, name) == value, name


def test_the_command_checks_the_package_that_the_registry_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded, and for any attack: here PGD needs a package that does not exist."""
    package = Package("no_such_package", extra="nothing")
    known = {**known_attacks(), "pgd": replace(known_attacks()["pgd"], package=package)}
    monkeypatch.setattr("wafl.cli.commands.saved_runs.known_attacks", lambda: known)
    result = CliRunner().invoke(app, ["evaluate", "nowhere", "--attack", "pgd"])
    assert result.exit_code == 2
    message = "Error: attack='pgd' needs the package no_such_package: pip install 'wafl-learn[nothing]'"
    assert result.stderr.strip() == message


def test_the_registry_names_the_package_that_the_attack_imports() -> None:
    packages = {name: known.package for name, known in known_attacks().items() if known.package is not None}
    needed = Package(*autoattack_package.args, extra=autoattack_package.keywords["extra"])
    assert packages == {"autoattack": needed}
    assert autoattack_package.keywords["what"] == "attack='autoattack'"


SWEPT = [f"wafl-gamma={gamma}-learning_rate={rate}" for gamma in (0.5, 2.0, 10.0) for rate in (0.01, 0.1)]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three gammas by two learning rates by three seeds."""
    content = {
        "seeds": [3, 4, 10],
        "data": {"num_clients": 6, "labels_per_client": 3},
        "schedule": {"rounds": 1, "local_steps": 1},
        "methods": [{"method": "WAFL", "gamma": [10.0, 2.0, 0.5], "learning_rate": [0.1, 0.01], "steps": 2}],
        "attack": {"kind": "none"},
    }
    study = Study.create(parse_experiment(content, "here"), tmp_path_factory.mktemp("studies") / "swept")
    study.run()
    return study.folder.path


def first_column(text: str, second: str) -> list[str]:
    """The first column of the first table, up to the column ``second``; cells that were folded are put together."""
    lines = text.splitlines()
    head = next(index for index, line in enumerate(lines) if f" {second} " in line)
    end = lines[head].index(f" {second} ") + 1 + len(second)
    body = lines[head + 2 : next(index for index in range(head, len(lines)) if not lines[index].strip())]
    width = end - max(len(second), *(len(line[:end].split()[-1]) for line in body if line[end - 1].strip()))
    names: list[str] = []
    for line in body:
        if line[end - 1].strip():
            names.append("")
        names[-1] += line[:width].strip()
    return names


def test_all_seeds_are_tested_and_their_mean_and_deviation_printed(swept: Path, tmp_path: Path) -> None:
    text = invoke(str(swept), "--attack", "none", "--output", str(tmp_path))
    records = json.loads((tmp_path / "comparison.json").read_text())
    assert [(record["run"], record["seed"]) for record in records] == [(name, s) for name in SWEPT for s in (3, 4, 10)]
    clients = wafl.load_dataset("digits").partition(6, labels_per_client=3)
    for record in records:
        seed = "" if record["seed"] == 3 else f"seed-{record['seed']}"
        score = wafl.evaluate(wafl.load_run(swept / record["run"] / seed), clients)
        assert record["accuracy"] == pytest.approx(score.accuracy, abs=1e-9)
    for name in SWEPT:
        values = [100.0 * record["accuracy"] for record in records if record["run"] == name]
        assert f" {statistics.mean(values):.1f}±{statistics.stdev(values):.1f} " in text
    assert "standard deviation over 3 seeds" in text


def test_no_name_is_cut_off_at_80_columns(swept: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", str(swept), "--attack", "none", "--output", str(tmp_path)]
    text = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"}).stdout
    assert first_column(text, "attacked") == SWEPT
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    results = json.loads((swept / "results.json").read_text())
    for row in results["methods"].values():  # as wide as the table of a study gets
        row["attacked"] = dict.fromkeys(("0.2", "0.4", "0.6", "0.8"), row["clean"])
    console = Console(width=80)
    with console.capture() as capture:
        console.print(tables.comparison(results))
    assert first_column(capture.get(), "clean") == list(results["methods"])
    assert "…" not in capture.get()
