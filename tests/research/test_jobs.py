"""Jobs of an experiment: one after another or at once, and never twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.jobs import Kept, each


def halved(text: str) -> float:
    return int(text) / 2


def test_one_job_makes_them_in_their_order() -> None:
    assert list(each(halved, ["3", "1", "2"], 1)) == [("3", 1.5), ("1", 0.5), ("2", 1.0)]


STAMP = {"name": "some", "sha256": "ab"}


def test_a_finished_job_is_read_from_its_file_and_not_run_again(tmp_path: Path) -> None:
    first = Kept(tmp_path / "work", STAMP).run(halved, {"one": "1", "WAFL, shape": "2"})
    assert first == {"one": 0.5, "WAFL, shape": 1.0}
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["WAFL-shape.json", "one.json"]
    again = Kept(tmp_path / "work", STAMP).run(lambda _: pytest.fail("it ran again"), {"WAFL, shape": "2", "one": "1"})
    assert list(again.items()) == [("WAFL, shape", 1.0), ("one", 0.5)]


def test_a_job_of_another_registration_is_run_again(tmp_path: Path) -> None:
    Kept(tmp_path, STAMP).run(halved, {"one": "1"})
    other = Kept(tmp_path, STAMP | {"sha256": "cd"})
    assert not other.has("one")
    assert other.run(halved, {"one": "3"}) == {"one": 1.5}
    assert Kept(tmp_path, STAMP | {"sha256": "cd"}).has("one")


def test_without_processes_nothing_runs_and_what_is_missing_is_named(tmp_path: Path) -> None:
    messages: list[str] = []
    Kept(tmp_path, STAMP).run(halved, {"one": "1"})
    assert Kept(tmp_path, STAMP, 0, messages.append).run(halved, {"one": "1", "two": "2"}) == {"one": 0.5}
    assert messages == ["not finished: two"]


def test_what_was_finished_before_an_error_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no number"):
        Kept(tmp_path, STAMP).run(halved, {"one": "1", "two": "no number", "three": "3"})
    assert Kept(tmp_path, STAMP).has("one")


def test_without_a_folder_results_are_in_memory_alone() -> None:
    kept = Kept(None, STAMP)
    kept.run(halved, {"one": "1"})
    assert kept.has("one")
    assert kept.results == {"one": 0.5}
    assert not Kept(None, STAMP).has("one")


@pytest.mark.slow
@pytest.mark.processes
def test_an_error_comes_after_the_results_of_the_others() -> None:
    result: list[tuple[str, float]] = []
    with pytest.raises(ValueError, match="no number"):
        result.extend(each(halved, ["1", "no number", "2"], 2))
    assert sorted(result) == [("1", 0.5), ("2", 1.0)]
