"""A study that gets more rounds ends in the bits of one that asked for them, and nothing else of it can change."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.studies.commands import contents, outcome
from wafl.base.errors import ConfigError, FolderError
from wafl.base.files import sealed
from wafl.callbacks import Moment
from wafl.cli.main import app
from wafl.config.read import parse_experiment
from wafl.objectives import learned_gamma
from wafl.studies import folder as folder_module
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.progress import read_lines
from wafl.studies.repair import extend
from wafl.studies.study import Study

BASE: dict[str, Any] = {
    "seeds": [0, 1],
    "data": {"num_clients": 5, "labels_per_client": 4},
    "schedule": {"rounds": 6, "cohort": 3, "local_steps": 1, "batch_size": 8, "learning_rate": 0.1, "momentum": 0.5},
    "methods": [
        {"method": "WAFL", "radius": [0.2, 0.4]},
        {"method": "FedRobust"},
        {"method": "DRFA"},
        {"method": "SCAFFOLD", "momentum": 0.0},
        {"method": "FedAdam"},
        {"method": "FedAvg", "name": "diverges", "learning_rate": [0.1, 1e30]},
        {"method": "FedAvg", "name": "short", "rounds": 2},
    ],
    "attack": {"kind": "none"},
    "evaluation": {"every": 2},
    "early_stopping": {"metric": "loss", "patience": 2},
}


@pytest.fixture(autouse=True, scope="module")
def short_warm_up() -> Generator[None]:
    """Let the balls of three rounds and of six grow alike, as balls of 90 rounds and more do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned_gamma, "LONGEST_WARM_UP", 1)
        yield


def make(path: Path, rounds: int, **changes: Any) -> Study:
    content = {**BASE, "schedule": {**BASE["schedule"], "rounds": rounds}, **changes}
    return Study.create(parse_experiment(content, "here"), path)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "study"
    make(path, 6).run()
    return path


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("short") / "study"
    make(path, 3).run()
    return path


@pytest.fixture
def short(ended: Path, tmp_path: Path) -> Path:
    """A finished study of three rounds."""
    return Path(shutil.copytree(ended, tmp_path / "study"))


def test_a_finished_study_is_extended_to_the_bits_of_one_that_asked_for_so_many(short: Path, long: Path) -> None:
    """Learned weights, gammas, what clients keep, early stops, a diverged run, and a method with its own rounds."""
    rounds = {(row["method"], row["seed"], row["round"]) for row in read_lines(StudyFolder(long).metrics)}
    stopped = {seed for seed in (0, 1) for name in ("fedadam", "scaffold") if (name, seed, 5) not in rounds}
    assert stopped, "some run stops early, in rounds that were added"
    trained: list[int] = []
    extend(short, ["schedule.rounds=6"]).run([lambda moment: trained.append(moment.record.round)])
    assert set(trained) <= {3, 4, 5}, "what was trained is not trained again"
    assert outcome(short) == outcome(long)
    assert (short / "config.toml").read_bytes() == (long / "config.toml").read_bytes()


@pytest.mark.slow
def test_a_study_is_extended_again_and_while_it_is_interrupted(tmp_path: Path, long: Path) -> None:
    def stop(moment: Moment) -> None:
        if (moment.name.partition(" ")[0], moment.record.round) == ("DRFA", 2):
            raise KeyboardInterrupt

    for rounds, study in ((4, lambda: make(tmp_path / "study", 3)), (6, None)):
        with pytest.raises(KeyboardInterrupt):
            (study() if study else Study.resume(tmp_path / "study")).run([stop])
        extend(tmp_path / "study", [f"schedule.rounds={rounds}"])
    extend(tmp_path / "study", ["schedule.rounds=6"]).run()
    assert outcome(tmp_path / "study") == outcome(long)


class KilledError(Exception):
    """At a moment that is tried."""


@pytest.mark.parametrize("turn", range(4))
def test_a_kill_while_a_study_is_extended_leaves_one_that_can_be_resumed_or_extended(
    short: Path, ended: Path, long: Path, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    left, write = turn, folder_module.write_whole

    def dying(path: Path, content: bytes) -> None:
        nonlocal left
        if left == 0:
            raise KilledError
        left -= 1
        write(path, content)

    monkeypatch.setattr(folder_module, "write_whole", dying)
    if turn < 3:
        with pytest.raises(KilledError):
            extend(short, ["schedule.rounds=6"])
    else:
        extend(short, ["schedule.rounds=6"])
    monkeypatch.undo()
    assert StudyFolder.existing(short).status() == "interrupted"
    if turn == 1:
        Study.resume(short).run()
        assert outcome(short) == outcome(ended), "it was not extended yet"
    elif turn > 1:
        Study.resume(short).run()
        assert outcome(short) == outcome(long), "it was extended already"
    else:
        assert extend(short, ["schedule.rounds=6"]).pending()


def refused(path: Path, change: str, *parts: str) -> None:
    before = contents(path)
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["resume", str(path), "--set", change])
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    for part in parts:
        assert part in result.stderr
    assert contents(path) == before


def test_a_study_whose_ball_would_have_grown_more_slowly_is_not_extended(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learned_gamma, "LONGEST_WARM_UP", 30)
    refused(
        short,
        "schedule.rounds=6",
        "the ball of wafl grew over the first 1 of 3 rounds",
        "the first 2 of 6",
        "wafl run",
    )


def test_a_study_whose_weights_go_by_the_number_of_rounds_is_not_extended(tmp_path: Path) -> None:
    make(tmp_path / "study", 3, methods=[{"method": "FedDGGA"}]).run()
    refused(tmp_path / "study", "schedule.rounds=6", "the client weights of feddgga end with its 3 rounds", "wafl run")


def test_any_other_change_is_refused_with_what_to_do_instead(short: Path) -> None:
    config = short / "config.toml"
    refused(
        short,
        "schedule.cohort=2",
        "only schedule.rounds, or the rounds of a method,",
        f"wafl run {config} --set schedule.cohort=2",
    )
    refused(short, "methods.short.learning_rate=9", "only schedule.rounds")
    refused(short, "methods.unknown.rounds=9", "no entry 'unknown'")
    refused(short, "methods.short.rounds=1", "rounds=1 is below the 2 that short has", "added, not taken back")
    refused(short, "schedule.rounds=2", "rounds=2 is below the 3", "rounds can be added, not taken back")
    refused(short, "schedule.rounds=many", "schedule.rounds = 'many'")


def test_a_study_whose_methods_have_rounds_of_their_own_is_not_extended_in_silence(tmp_path: Path) -> None:
    make(tmp_path / "study", 3, methods=[{"method": "FedAvg", "rounds": 1}]).run()
    with pytest.raises(ConfigError, match=r"changes nothing: every method of .* own.*--set methods.fedavg.rounds=..."):
        extend(tmp_path / "study", ["schedule.rounds=4"])
    extend(tmp_path / "study", ["methods.fedavg.rounds=2"]).run()
    assert [row["round"] for row in read_lines(StudyFolder(tmp_path / "study").metrics) if row["seed"] == 0] == [0, 1]


def test_a_study_that_has_not_kept_where_it_ended_is_not_trained_again_in_silence(short: Path) -> None:
    """As one of an earlier version."""
    shutil.rmtree(short / "checkpoint" / "drfa")
    with pytest.raises(FolderError, match=r"does not contain where drfa ended.*start another study with wafl run"):
        extend(short, ["schedule.rounds=6"])
    assert StudyFolder(short).status() == "finished"


def test_a_study_on_nodes_is_not_extended(tmp_path: Path) -> None:
    path = tmp_path / "study"
    make(path, 3, engine="flower-sim", methods=[{"method": "FedAvg"}])
    with pytest.raises(ConfigError, match=r"engine = 'flower-sim', whose nodes forget what their clients keep"):
        extend(path, ["schedule.rounds=6"])


def test_a_config_that_somebody_changed_is_still_refused(short: Path) -> None:
    extend(short, ["schedule.rounds=6"])
    about = StudyFolder(short).read_about()
    assert "config_before" not in about
    assert (short / "about.json").read_bytes() == sealed(about)
    config = short / "config.toml"
    config.write_text(config.read_text().replace("rounds = 6", "rounds = 3"))
    with pytest.raises(FolderError, match="is not the file that the study was started with"):
        Study.resume(short)
