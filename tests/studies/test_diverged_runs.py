"""A run of a study that diverges is marked and explained; the others, and the study, go on to the same bits."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import wafl
from tests.studies.commands import invoke, outcome
from wafl.base.errors import DivergedError
from wafl.callbacks import Moment
from wafl.config.read import parse_experiment
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.progress import read_lines
from wafl.studies.study import Study

TOO_LARGE = 1e30
FRAGILE = '''
from dataclasses import dataclass

import wafl


@dataclass(frozen=True)
class Fragile(wafl.servers.Server):
    """The mean of the clients' models, which is not finite if a client of this size takes part."""

    size: int

    def step(self, update, memory):
        mean = update.mean()
        return (mean * float("inf") if self.size in update.sizes.tolist() else mean), {}
'''
MODULE = "fragile_server_of_the_tests"
BASE: dict[str, Any] = {
    "data": {"num_clients": 5, "labels_per_client": 4},
    "schedule": {"rounds": 4, "cohort": 1, "local_steps": 2, "batch_size": 16, "learning_rate": 0.1},
    "attack": {"steps": 2},
    "evaluation": {"attacked": [0.4, 0.8]},
}
# By their cohorts of one client: seeds 6 and 10 never ask client 2; seed 1 asks it in round 2, seed 4 in round 0.
SEEDS, SOUND = [1, 6, 4, 10], [6, 10]
SIZES = wafl.load_dataset("digits").partition(**BASE["data"]).train.num_examples.tolist()
SERVER = {"kind": f"{MODULE}:Fragile", "options": {"size": SIZES[2]}}
METHODS: list[dict[str, Any]] = [
    {"method": "FedAvg", "name": "hopeless", "weight_decay": TOO_LARGE},
    {"method": "WAFL", "gamma": [1.0, 4.0], "server": SERVER},
    {"method": "FedAvg", "weight_decay": [0.0, TOO_LARGE, 0.1]},
]
LABELS = ["hopeless", "wafl-gamma=1.0", "wafl-gamma=4.0"] + [f"fedavg-weight_decay={d}" for d in (0.0, TOO_LARGE, 0.1)]


@pytest.fixture(autouse=True, scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path, None, None]:
    folder = tmp_path_factory.mktemp("source")
    (folder / f"{MODULE}.py").write_text(FRAGILE)
    yield folder
    sys.modules.pop(MODULE, None)


def make(path: Path, source: Path, **changes: Any) -> Study:
    content = {**BASE, "seeds": SEEDS, "methods": METHODS, **changes}
    return Study.create(parse_experiment(content, "here"), path, source)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A finished study with a method that diverges, a sweep of which one value does, and one of which two seeds do."""
    path = tmp_path_factory.mktemp("whole") / "study"
    make(path, source).run()
    return path


@pytest.fixture
def finished(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "finished"))


def results_of(folder: Path) -> dict[str, Any]:
    return StudyFolder(folder).read_results()


# -- Results --------------------------------------------------------------------------------------------------


def test_a_row_says_which_seeds_diverged_and_why_and_its_numbers_are_over_the_others(whole: Path) -> None:
    rows = results_of(whole)["methods"]
    assert list(rows) == LABELS
    for label in ("wafl-gamma=1.0", "wafl-gamma=4.0"):
        row = rows[label]
        assert row["seeds"] == SOUND
        assert row["diverged"] == {
            seed: f"round {number}, server: its step is not finite; lower the server's learning rate"
            for seed, number in (("1", 2), ("4", 0))
        }
        for numbers in (row["clean"], row["worst_client"], *row["attacked"].values()):
            assert len(numbers["seeds"]) == len(SOUND)
            assert numbers["mean"] == pytest.approx(sum(numbers["seeds"]) / len(SOUND))
    for label in ("fedavg-weight_decay=0.0", "fedavg-weight_decay=0.1"):
        assert rows[label]["seeds"] == SEEDS
        assert "diverged" not in rows[label]


def test_a_row_whose_runs_all_diverged_has_no_numbers(whole: Path) -> None:
    rows = results_of(whole)["methods"]
    for label in ("hopeless", f"fedavg-weight_decay={TOO_LARGE}"):
        assert list(rows[label]) == ["diverged"]
        assert list(rows[label]["diverged"]) == [str(seed) for seed in SEEDS]
        for reason in rows[label]["diverged"].values():
            assert reason.startswith("round ")
            assert "learning_rate=0.1 is likely too large: lower it" in reason


# -- Metrics --------------------------------------------------------------------------------------------------


def test_the_last_line_of_a_diverged_run_says_why_in_place_of_the_numbers(whole: Path) -> None:
    rows, runs = read_lines(StudyFolder(whole).metrics), 0
    for label, row in results_of(whole)["methods"].items():
        name, _, value = label.partition("=")
        for seed, reason in row.get("diverged", {}).items():
            runs += 1
            folder = whole / label / ("" if int(seed) == SEEDS[0] else f"seed-{seed}")
            run = wafl.load_run(folder)
            swept = {name.partition("-")[2]: float(value)} if value else {}
            about = {"method": name.partition("-")[0], **swept, "seed": int(seed)}
            mine = [line for line in rows if about.items() <= line.items()]
            assert mine[-1] == {**about, "round": len(run.history), "diverged": reason}
            assert [line["loss"] for line in mine[:-1]] == run.history.column("loss")
            assert run.diverged == reason
            assert reason.startswith(f"round {len(run.history)}, ")
    assert runs == sum("diverged" in line for line in rows) == 4 + 2 * 2 + 4


# -- Interrupted and resumed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [4, 13, 27])
def test_interrupted_and_resumed_a_study_with_diverged_runs_ends_in_the_same_bits(
    whole: Path, tmp_path: Path, source: Path, at: int
) -> None:
    left, path = at, tmp_path / "study"

    def stop(_: Moment) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(path, source).run([stop])
    assert not results_of(path).get("finished")
    Study.resume(path).run()
    assert outcome(path) == outcome(whole)


def test_damaged_metrics_are_repaired_with_the_lines_of_diverged_runs(whole: Path, finished: Path) -> None:
    (finished / "metrics.jsonl").write_text("{")
    assert invoke("resume", finished).exit_code == 3
    assert (finished / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert (finished / "results.json").read_bytes() == (whole / "results.json").read_bytes()


# -- All of them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("methods", [METHODS[:1], [METHODS[0], {"method": "WAFL", "weight_decay": TOO_LARGE}]])
def test_a_study_whose_every_run_diverged_is_an_error_after_its_results_are_written(
    tmp_path: Path, source: Path, methods: list[dict[str, Any]]
) -> None:
    path = tmp_path / "study"
    with pytest.raises(
        DivergedError, match=r"^every run diverged; hopeless, seed 1: round 1, client \d: the update is"
    ):
        make(path, source, methods=methods).run()
    results = results_of(path)
    assert results["finished"]
    assert len(results["done"]) == len(methods)
    assert all(list(row) == ["diverged"] for row in results["methods"].values())
    assert len(read_lines(StudyFolder(path).metrics)) == 2 * len(SEEDS) * len(methods)
    with pytest.raises(DivergedError, match="every run diverged"):
        Study.resume(path).run([lambda _: pytest.fail("a round was trained")])
    shown = invoke("resume", path)
    assert (shown.exit_code, shown.stderr.count("\n")) == (2, 1)
    assert shown.stderr.startswith("Error: every run diverged; hopeless, seed 1: round 1, client")
    again = invoke("run", write(source, methods=methods), "--output", tmp_path, "--name", "again")
    assert (again.exit_code, again.stdout.count("Diverged: hopeless, seed ")) == (2, 4)
    assert "every run in" in invoke("evaluate", path).stderr
    assert f"{4 * len(methods)} runs diverged" in invoke("runs", tmp_path).stdout


# -- The commands ---------------------------------------------------------------------------------------------


def write(folder: Path, **changes: Any) -> Path:
    """The experiment as a file beside the module of its server."""
    import tomlkit

    path = folder / "exp.toml"
    path.write_text(tomlkit.dumps({**BASE, "seeds": SEEDS, "methods": METHODS, **changes}))
    return path


def test_run_exits_3_and_its_table_counts_and_explains_what_diverged(whole: Path, tmp_path: Path, source: Path) -> None:
    result = invoke("run", write(source), "--output", tmp_path, "--name", "study")
    assert result.exit_code == 3, result.output
    assert outcome(tmp_path / "study") == outcome(whole)
    lines = result.stdout.splitlines()
    table = {line.split()[0]: line for line in lines if line.split()[:1] and line.split()[0] in LABELS}
    assert table["hopeless"].split() == ["hopeless", *["-"] * 5, "4", "of", "4"]
    assert table["wafl-gamma=1.0"].rstrip().endswith(" 2 of 4")
    assert "±" in table["wafl-gamma=1.0"]
    assert not table["fedavg-weight_decay=0.0"].rstrip().endswith("of 4")
    assert "over 4 seeds (diverged runs left out)" in " ".join(result.stdout.split())
    for label, row in results_of(whole)["methods"].items():
        for seed, reason in row.get("diverged", {}).items():
            assert f"Diverged: {label}, seed {seed}: {reason}" in lines
    assert (tmp_path / "study" / "figures" / "accuracy.png").stat().st_size > 1000
    assert invoke("resume", tmp_path / "study").exit_code == 3


def test_runs_names_the_best_of_the_others_and_counts_what_diverged(whole: Path) -> None:
    rows = {label: row for label, row in results_of(whole)["methods"].items() if "clean" in row}
    best = max(rows, key=lambda label: rows[label]["attacked"]["0.8"]["mean"])
    shown = invoke("runs", whole.parent).stdout
    test = "with 80% attacked: l_inf PGD, epsilon 0.1, 2 steps"
    assert f"{best}: {rows[best]['attacked']['0.8']['mean']:.1f}% ({test}); 12 runs diverged" in " ".join(shown.split())


def test_evaluate_tests_the_seeds_that_did_not_diverge(finished: Path) -> None:
    result = invoke("evaluate", finished, "--attack", "none")
    assert result.exit_code == 0, result.output
    tested = [(row["run"], row["seed"]) for row in json.loads((finished / "comparison.json").read_text())]
    rows = results_of(finished)["methods"]
    assert sorted(tested) == [(label, seed) for label in sorted(rows) for seed in sorted(rows[label].get("seeds", []))]
    assert [seed for label, seed in tested if label == "wafl-gamma=1.0"] == SOUND
    assert "hopeless" not in dict(tested)
    lines = result.stderr.splitlines()
    reasons = rows["wafl-gamma=1.0"]["diverged"]
    assert f"Left out: {finished / 'wafl-gamma=1.0'} diverged: {reasons['1']}" in lines
    assert f"Left out: {finished / 'wafl-gamma=1.0' / 'seed-4'} diverged: {reasons['4']}" in lines
    assert sum(line.startswith(f"Left out: {finished / 'hopeless'}") for line in lines) == 4
    assert len(lines) == sum(len(row.get("diverged", ())) for row in rows.values())


def test_a_run_that_diverged_is_neither_evaluated_nor_exported(finished: Path) -> None:
    method = finished / "wafl-gamma=1.0"
    for command, path in (("evaluate", method / "seed-4"), ("theory", method), ("export", method)):
        result = invoke(command, path, *(("--format", "safetensors") if command == "export" else ()))
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {path} diverged: round {0 if path != method else 2}, server: ")
        assert result.stderr.count("\n") == 1
    result = invoke("export", finished / "wafl-gamma=1.0" / "seed-6", "--format", "safetensors")
    assert result.exit_code == 0, result.output
