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


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::wafl.base.errors.CheckpointWarning")  # how a study says that it recovers
def test_a_flipped_byte_is_recovered_from_or_refused(tmp_path: Path) -> None:
    count = soak.soak_corruption(tmp_path, flips=16)
    assert count["half: recovered"] + count["half: refused"] == 8
    assert count["whole: recovered"] + count["whole: refused"] == 8
    assert not lost(count)


@pytest.mark.slow
@pytest.mark.processes
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    count = soak.soak_full_disk(tmp_path, limits=2)
    assert count["ran out of disk"] > 0
    assert not lost(count)


@pytest.mark.slow
def test_a_round_costs_the_same_after_many(tmp_path: Path) -> None:
    assert not lost(soak.soak_many_rounds(tmp_path, rounds=3000))
