"""Each file of a study damaged in turn: repaired and resumed, it is the undamaged study again, to the last bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.config.commands import assert_one_line
from tests.studies.commands import contents, flip, interrupt, invoke, methods_trained, outcome
from wafl.base.errors import FolderError, UnfitCheckpointError
from wafl.base.files import sealed, unsealed
from wafl.config.read import parse_experiment
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.progress import read_lines
from wafl.studies.repair import Repair, extend, repair
from wafl.studies.study import Study

SMALL: dict[str, Any] = {
    "seeds": [3, 1],
    "data": {"num_clients": 4, "labels_per_client": 4},
    "schedule": {"rounds": 3, "cohort": 2, "local_steps": 1, "batch_size": 8, "learning_rate": 0.1},
    "methods": [{"method": "FedAvg", "momentum": [0.0, 0.5]}, {"method": "AFL"}],
    "attack": {"kind": "fgsm", "epsilon": 0.1},
    "evaluation": {"attacked": [0.5]},
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished study, and one that was stopped in its second method, after its second of three rounds."""
    folder = tmp_path_factory.mktemp("repair")
    Study.create(parse_experiment(SMALL, "here"), folder / "whole").run()
    interrupt(Study.create(parse_experiment(SMALL, "here"), folder / "half"), "afl", 4)
    return {"whole": folder / "whole", "half": folder / "half"}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def repaired(path: Path) -> Repair:
    return repair(Study.resume(path))


RUN = "fedavg-momentum=0.5/seed-1"
DAMAGES: dict[str, tuple[str, Callable[[Path], Any], list[str]]] = {
    "results flipped": ("whole", lambda path: flip(path / "results.json"), []),
    "results cut": ("whole", lambda path: cut(path / "results.json"), []),
    "metrics flipped": ("whole", lambda path: flip(path / "metrics.jsonl"), []),
    "metrics gone": ("whole", lambda path: (path / "metrics.jsonl").unlink(), []),
    "a description flipped": ("whole", lambda path: flip(path / RUN / "run.json"), ["fedavg"]),
    "parameters flipped": ("whole", lambda path: flip(path / RUN / "params.safetensors"), ["fedavg"]),
    "parameters gone": ("whole", lambda path: (path / "afl" / "params.safetensors").unlink(), ["afl"]),
    "a run gone": ("whole", lambda path: shutil.rmtree(path / "afl" / "seed-1"), ["afl"]),
    "results of a half flipped": ("half", lambda path: flip(path / "results.json"), ["afl"]),
    "metrics of a half flipped": ("half", lambda path: flip(path / "metrics.jsonl"), ["afl"]),
    "a run of a half flipped": ("half", lambda path: flip(path / RUN / "run.json"), ["fedavg", "afl"]),
    "the last checkpoint": (
        "half",
        lambda path: flip(sorted(path.glob("checkpoint/afl/*/state.json"))[-1]),
        ["afl"],
    ),
    "both checkpoints": (
        "half",
        lambda path: [flip(file) for file in path.glob("checkpoint/afl/*/state.safetensors")],
        ["afl"],
    ),
    "the journal": ("half", lambda path: flip(path / "checkpoint" / "afl" / "rounds.journal"), ["afl"]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_study_repaired_and_resumed_has_the_bits_of_the_undamaged_one(
    studies: dict[str, Path], tmp_path: Path, damage: str
) -> None:
    which, spoil, trained = DAMAGES[damage]
    path = Path(shutil.copytree(studies[which], tmp_path / "study"))
    spoil(path)
    done = repaired(path)
    assert done.dropped or done.made
    assert done.pending == trained
    assert repaired(path).dropped == [], "once is enough"
    assert set(methods_trained(Study.resume(path))) <= set(trained), "from the last checkpoint, if it is sound"
    assert outcome(path) == outcome(studies["whole"])
    rows = [list(StudyFolder(folder).read_results()["methods"]) for folder in (path, studies["whole"])]
    assert rows[0] == rows[1], "in the order of the experiment"


@pytest.mark.parametrize("which", ["whole", "half"])
def test_a_sound_study_is_left_as_it_is(studies: dict[str, Path], tmp_path: Path, which: str) -> None:
    path = Path(shutil.copytree(studies[which], tmp_path / "study"))
    before = contents(path)
    result = invoke("repair", path)
    assert result.exit_code == 0, result.output
    assert f"{path} is sound: nothing was changed" in result.stdout
    assert ("Still to train: afl. To do so: wafl resume" in result.stdout) == (which == "half")
    assert contents(path) == before


def test_what_is_dropped_and_made_again_is_said_and_every_refusal_points_there(
    studies: dict[str, Path], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(studies["whole"], tmp_path / "study"))
    flip(path / RUN / "params.safetensors")
    for command in (["resume", path], ["evaluate", path], ["theory", path / RUN]):
        assert_one_line(invoke(*command), str(path / RUN), "is damaged", f"wafl repair {path}")
    flip(path / "results.json")
    assert_one_line(invoke("resume", path), f"wafl repair {path} makes it again from the saved runs")
    result = invoke("repair", path)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert any(line.startswith(f"Dropped: {path / 'results.json'}: ") for line in lines)
    assert any(line.startswith(f"Dropped: {path / RUN}: ") and "params.safetensors" in line for line in lines)
    assert f"Made again: {path / 'results.json'}: afl, by testing its saved runs" in lines
    assert f"Still to train: fedavg. To do so: wafl resume {path}" in lines
    assert "Note: fedavg is not finished" in invoke("evaluate", path, "--attack", "none").stderr


def test_a_study_that_does_not_know_what_it_was_is_beyond_repair(studies: dict[str, Path], tmp_path: Path) -> None:
    for name in ("config.toml", "about.json"):
        path = Path(shutil.copytree(studies["whole"], tmp_path / name))
        flip(path / name)
        before = contents(path)
        assert_one_line(invoke("repair", path), str(path / name), "cannot be made again: put it back", "wafl.load_run")
        assert contents(path) == before
        with pytest.raises(FolderError):
            Study.resume(path)


def test_a_sound_checkpoint_of_a_newer_version_is_not_dropped(studies: dict[str, Path], tmp_path: Path) -> None:
    path = Path(shutil.copytree(studies["half"], tmp_path / "study"))
    for file in path.glob("checkpoint/afl/*/state.json"):
        file.write_bytes(sealed({**unsealed(file.read_bytes()), "format": 99}))
    before = contents(path)
    with pytest.raises(UnfitCheckpointError, match="update wafl-learn"):
        repaired(path)
    assert contents(path) == before


def test_seconds_are_what_all_pieces_took(studies: dict[str, Path], tmp_path: Path) -> None:
    """Not the last piece alone; and the rows of a sweep add up to the whole."""
    path = Path(shutil.copytree(studies["half"], tmp_path / "study"))
    kept = StudyFolder(path).read_results()["methods"]
    spent = [row["seconds"] for row in read_lines(StudyFolder(path).metrics) if row["method"] == "afl"]
    Study.resume(path).run()
    results, metrics = StudyFolder(path).read_results(), read_lines(StudyFolder(path).metrics)
    assert [row["seconds"] for row in metrics if row["method"] == "afl"][:2] == spent[:2], "rounds before the stop"
    for label, row in results["methods"].items():
        method, _, momentum = label.lower().partition("-momentum=")
        options = [line for line in metrics if line["method"] == method and str(line.get("momentum", "")) == momentum]
        assert len(options) == 6
        assert row["seconds"] == pytest.approx(sum(line["seconds"] for line in options), rel=1e-12)
        assert label not in kept or row["seconds"] == kept[label]["seconds"]


def test_runs_from_before_more_rounds_were_asked_for_do_not_count_as_done(
    studies: dict[str, Path], tmp_path: Path
) -> None:
    path = Path(shutil.copytree(studies["whole"], tmp_path / "study"))
    extend(path, ["schedule.rounds=4"])
    assert repaired(path).pending == ["fedavg", "afl"]
    Study.resume(path).run()
    assert len(read_lines(StudyFolder(path).metrics)) == 6 * 4


@pytest.mark.parametrize("lost", [False, True])
def test_sound_runs_are_trained_again_only_without_a_checkpoint_and_the_reason_is_said(
    studies: dict[str, Path], tmp_path: Path, lost: bool
) -> None:
    path = Path(shutil.copytree(studies["whole"], tmp_path / "study"))
    flip(path / RUN / "params.safetensors")
    if lost:
        flip(path / "checkpoint" / "fedavg" / "rounds.journal")
    text = invoke("repair", path).output
    assert ("All runs again: fedavg. The runs of a method are computed together" in text) == lost
    assert methods_trained(Study.resume(path)) == (["fedavg"] if lost else [])
    assert outcome(path) == outcome(studies["whole"])
