"""Pieces of an experiment that are made one after another or at once."""

from __future__ import annotations

import pytest

from research.reproduction.reproduce import each


def halved(text: str) -> float:
    return int(text) / 2


def test_one_job_makes_them_in_their_order() -> None:
    assert list(each(halved, ["3", "1", "2"], 1)) == [("3", 1.5), ("1", 0.5), ("2", 1.0)]


@pytest.mark.slow
@pytest.mark.processes
def test_an_error_comes_after_the_results_of_the_others() -> None:
    found: list[tuple[str, float]] = []
    with pytest.raises(ValueError, match="no number"):
        found.extend(each(halved, ["1", "no number", "2"], 2))
    assert sorted(found) == [("1", 0.5), ("2", 1.0)]
