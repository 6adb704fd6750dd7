"""Intervals, paired differences and ranks, against plain formulas and published examples."""

from __future__ import annotations

import math
import statistics
from typing import Any, cast

import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from research.leaderboard.page import against, average_ranks
from research.significance import resampled
from research.statistics import mean_of


def test_an_interval_is_students() -> None:
    values = [70.0, 72.0, 71.0, 75.0, 69.0]
    result = mean_of(values)
    assert result.value == statistics.fmean(values)
    assert result.half == pytest.approx(2.776445 * statistics.stdev(values) / math.sqrt(5), rel=1e-6)
    assert mean_of([3.0]).half is None


def test_pairs_that_differ_alike_leave_no_doubt() -> None:
    result = mean_of([ours - theirs for ours, theirs in ((1.0, 0.5), (5.0, 4.5), (9.0, 8.5))])
    assert result.value == pytest.approx(0.5)
    assert result.half == pytest.approx(0.0, abs=1e-12)


def test_equal_values_share_their_ranks() -> None:
    ranks = average_ranks({"one": {"a": 3.0, "b": 2.0, "c": 2.0}, "two": {"a": 1.0, "b": 5.0, "c": 4.0}})
    assert ranks == {"a": 2.0, "b": 1.75, "c": 2.25}


def test_ranks_against_a_control_are_those_of_demsars_example() -> None:
    # Demsar (2006), section 3.2.2: average ranks 3.143, 2.000, 2.893 and 1.964 on 14 data sets; against the first,
    # p is 0.019, 0.607 and 0.016, and Holm's procedure multiplies by 2, 1 and 3. These ranks have those averages.
    rows = [(1, 2, 3, 4)] * 3 + [(1, 3, 2, 4)] + [(4, 2, 3, 1)] * 9 + [(4, 1, 2.5, 2.5)]
    table = {str(path): dict(zip("abcd", (-rank for rank in row), strict=True)) for path, row in enumerate(rows)}
    assert list(average_ranks(table).values()) == pytest.approx([3.143, 2.0, 2.893, 1.964], abs=5e-4)
    result = against("a", table)
    assert result["d"] == result["b"] == pytest.approx(3 * 0.0157, abs=2e-4)
    assert result["c"] == pytest.approx(0.607, abs=3e-3)


def test_splits_that_overlap_widen_an_interval() -> None:
    values = [1.0, 2.0, 3.0, 2.0, 1.5]
    plain, p = resampled(values, 0.0)
    assert (plain.half, p) == (
        pytest.approx(mean_of(values).half),
        pytest.approx(cast(Any, ttest_1samp(values, 0.0)).pvalue),
    )
    wide, p = resampled(values, 0.25)
    t = 1.9 / math.sqrt(0.55 * (1 / 5 + 0.25))  # the variance of these five is 0.55
    assert wide.half == pytest.approx(2.776445 * 1.9 / t, rel=1e-6)
    assert p == pytest.approx(2 * student.sf(t, 4))
    assert resampled([0.0, 0.0], 0.5)[1] == 1.0
    assert resampled([1.0, 1.0], 0.5)[1] == 0.0
