"""A study folder from a stranger may hold links: none of them is followed, and nothing behind them changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wafl.callbacks import Moment
from wafl.cli.main import app
from wafl.config.read import parse_experiment
from wafl.studies.study import Study

EXPERIMENT = {
    "data": {"num_clients": 4, "labels_per_client": 5},
    "schedule": {"rounds": 2, "local_steps": 1},
    "attack": {"kind": "none"},
    "methods": [{"method": "FedAvg", "name": "Documents"}],
}
PLACES = ["checkpoint", "checkpoint/documents", "figures", "documents", "metrics.jsonl", "results.json", "roster.json"]
PLACES += [".lock", "results.json.tmp"]
COMMANDS = [("resume",), ("evaluate",), ("theory",), ("export", "--format", "pt2")]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def stop(_: Moment) -> None:
        raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("runs") / "downloaded"
    with pytest.raises(KeyboardInterrupt):
        Study.create(parse_experiment(EXPERIMENT, "here"), folder).run([stop])
    return folder


@pytest.mark.parametrize("name", PLACES)
def test_a_link_is_named_and_nothing_behind_it_changes(name: str, stopped: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "Documents").mkdir(parents=True)
    (victim / "documents").mkdir(exist_ok=True)
    (victim / "Documents" / "thesis.txt").write_text("years of work")
    (victim / "documents" / "thesis.txt").write_text("years of work")
    study = tmp_path / "study"
    (study / name).parent.mkdir(parents=True)
    for file in ("config.toml", "about.json"):
        (study / file).write_bytes((stopped / file).read_bytes())
    target = victim if "." not in name else victim / "Documents" / "thesis.txt"
    (study / name).symlink_to(target)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in victim.rglob("*"))
    for command, *options in COMMANDS:
        result = CliRunner().invoke(app, [command, str(study), *options])
        assert result.exit_code == 2, result.output
        assert "is a link" in " ".join(result.output.split())
    assert sorted((str(path), path.stat().st_mtime_ns) for path in victim.rglob("*")) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json", ".lock", "checkpoint/state.json"])
def test_a_hard_link_is_named_and_its_other_name_does_not_change(name: str, stopped: Path, tmp_path: Path) -> None:
    """An archive may hold one, and ``resume`` appends to the metrics."""
    thesis, study = tmp_path / "thesis.txt", tmp_path / "study"
    thesis.write_text("years of work")
    shutil.copytree(stopped, study)
    (study / name).unlink(missing_ok=True)
    os.link(thesis, study / name)
    for command, *options in COMMANDS:
        result = CliRunner().invoke(app, [command, str(study), *options])
        assert result.exit_code == 2, result.output
        assert "is a hard link" in " ".join(result.output.split())
    assert thesis.read_text() == "years of work"


def test_a_study_reached_through_a_link_is_read_as_usual(stopped: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(stopped)
    assert Study.resume(tmp_path / "mine").pending()
