"""Intervals, paired differences and ranks, against plain formulas and published examples."""

from __future__ import annotations

import math
import statistics

import pytest

from wafl.lab.statistics import average_ranks, critical_difference, mean_of, paired


def test_an_interval_is_students() -> None:
    values = [70.0, 72.0, 71.0, 75.0, 69.0]
    found = mean_of(values)
    assert found.value == statistics.fmean(values)
    assert found.half == pytest.approx(2.776445 * statistics.stdev(values) / math.sqrt(5), rel=1e-6)
    assert mean_of([3.0]).half is None


def test_pairs_that_differ_alike_leave_no_doubt() -> None:
    found = paired([1.0, 5.0, 9.0], [0.5, 4.5, 8.5])
    assert found.value == pytest.approx(0.5)
    assert found.half == pytest.approx(0.0, abs=1e-12)


def test_equal_values_share_their_ranks() -> None:
    ranks = average_ranks({"one": {"a": 3.0, "b": 2.0, "c": 2.0}, "two": {"a": 1.0, "b": 5.0, "c": 4.0}})
    assert ranks == {"a": 2.0, "b": 1.75, "c": 2.25}


def test_the_critical_difference_is_that_of_demsars_example() -> None:
    # Demsar (2006), section 3.2.2: four classifiers on 14 data sets, q = 2.569, CD = 1.25.
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=5e-3)
