"""The arithmetic of registered experiments: frontiers, and intervals over splits that overlap."""

from __future__ import annotations

import math
from statistics import stdev
from typing import Any

import pytest
from scipy.stats import t as student

from research.jobs import Kept
from research.registered import attack_frontier
from research.registered.certified_frontier import gaps
from research.registered.splits import Gap, corrected, holm


def test_gaps_are_taken_on_the_common_interval_alone() -> None:
    ours, theirs = [(0.1, 0.5), (0.3, 0.3)], [(0.2, 0.5), (0.4, 0.3)]
    assert gaps(theirs, ours) == pytest.approx([10.0] * 4)
    assert gaps(ours, theirs) == pytest.approx([-10.0] * 4)
    assert gaps([(0.5, 0.6), (0.6, 0.5)], ours) is None


def test_overlapping_splits_have_the_variance_of_nadeau_and_bengio() -> None:
    values, ratio = [1.0, 2.0, 4.0, 3.0], 0.5
    error = stdev(values) * math.sqrt(1 / 4 + ratio)
    gap = corrected(values, ratio)
    assert gap.half == pytest.approx(student.ppf(0.975, 3) * error)
    assert gap.p == pytest.approx(2 * student.sf(2.5 / error, 3))
    assert corrected([0.0, 0.0], ratio).p == 1.0


def test_p_values_are_adjusted_for_their_number() -> None:
    result = holm([Gap(0.0, 1.0, p) for p in (0.01, 0.04, 0.03)])
    assert [gap.p for gap in result] == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.slow
def test_the_chosen_point_is_trained_again_for_autoattack(monkeypatch: pytest.MonkeyPatch) -> None:
    about: dict[str, Any] = attack_frontier.plan(True)
    about["families"] = {"decay": {**about["families"]["decay"], "against": ["inf"]}}
    about["test"]["autoattack_examples"] = 20
    monkeypatch.setattr(attack_frontier, "plan", lambda _: about)
    result = attack_frontier.everything(about, "digits", Kept(None, {"name": "test"}), smallest=True)
    (point,) = result["autoattack"]
    assert point["size"] == result["chosen"]["decay"]
    assert 0.0 <= point["accuracy"]["inf"] <= point["accuracy"]["clean"] <= 100.0
