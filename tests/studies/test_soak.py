"""The short form of ``make test-faults``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import soak


def lost(count: dict[str, int]) -> dict[str, int]:
    return {what: count[what] for what in soak.LOSSES if count[what]}


@pytest.mark.slow
def test_a_study_killed_at_random_moments_and_while_writing_ends_in_the_same_bits(tmp_path: Path) -> None:
    count = soak.soak_kills(tmp_path, kills=4)
    assert count["killed at random"] + count["killed while writing"] == 4
    assert not lost(count)


@pytest.mark.processes
def test_a_flipped_byte_is_recovered_from_or_refused(tmp_path: Path) -> None:
    count = soak.soak_corruption(tmp_path, flips=16)
    assert count["half: recovered"] + count["half: refused"] == 8
    assert count["whole: recovered"] + count["whole: refused"] == 8
    assert not lost(count)


@pytest.mark.processes
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    count = soak.soak_full_disk(tmp_path, limits=2)
    assert count["ran out of disk"] > 0
    assert not lost(count)


@pytest.mark.slow
def test_a_link_in_a_study_is_refused_wherever_it_is(tmp_path: Path) -> None:
    count = soak.soak_links(tmp_path)
    assert count["links refused"] == 7
    assert not lost(count)


@pytest.mark.slow
def test_a_kill_while_a_folder_is_made_leaves_none_or_a_study(tmp_path: Path) -> None:
    count = soak.soak_creation(tmp_path)
    assert count["killed while the folder was made"] >= 4
    assert not lost(count)


@pytest.mark.processes
def test_data_that_change_in_the_middle_of_a_study_are_refused(tmp_path: Path) -> None:
    count = soak.soak_changed_data(tmp_path)
    assert count["changed data"] == 4
    assert not lost(count)


@pytest.mark.slow
def test_a_round_costs_the_same_after_many(tmp_path: Path) -> None:
    assert not lost(soak.soak_many_rounds(tmp_path, rounds=3000))


@pytest.mark.processes
def test_three_studies_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    count = soak.soak_at_once(tmp_path)
    assert count["folders"] == 3
    assert not lost(count)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_every_fault_of_clients_is_survived_and_recorded(tmp_path: Path) -> None:
    count = soak.soak_clients(tmp_path)
    assert count["hopeless runs stopped"] == 1
    assert not lost(count)
