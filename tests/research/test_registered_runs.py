"""The arithmetic of registered benchmarks: frontiers, and intervals over splits that overlap."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from scipy.stats import t as student

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def shared() -> Any:
    return _names("registered_runs")


def _names(name: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return runpy.run_path(str(BENCHMARKS / f"{name}.py"))


def test_gaps_are_taken_on_the_common_interval_alone() -> None:
    gaps = _names("certified_frontier")["gaps"]
    ours, theirs = [(0.1, 0.5), (0.3, 0.3)], [(0.2, 0.5), (0.4, 0.3)]
    assert gaps(theirs, ours) == pytest.approx([10.0] * 4)
    assert gaps(ours, theirs) == pytest.approx([-10.0] * 4)
    assert gaps([(0.5, 0.6), (0.6, 0.5)], ours) is None


def test_overlapping_splits_have_the_variance_of_nadeau_and_bengio(shared: Any) -> None:
    values, ratio = [1.0, 2.0, 4.0, 3.0], 0.5
    error = stdev(values) * math.sqrt(1 / 4 + ratio)
    gap = shared["corrected"](values, ratio)
    assert gap.half == pytest.approx(student.ppf(0.975, 3) * error)
    assert gap.p == pytest.approx(2 * student.sf(2.5 / error, 3))
    assert shared["corrected"]([0.0, 0.0], ratio).p == 1.0


def test_p_values_are_adjusted_for_their_number(shared: Any) -> None:
    found = shared["holm"]([shared["Gap"](0.0, 1.0, p) for p in (0.01, 0.04, 0.03)])
    assert [gap.p for gap in found] == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.slow
def test_the_chosen_point_is_trained_again_for_autoattack(tmp_path: Path) -> None:
    names = _names("attack_frontier")
    about = names["plan"](True)
    about["families"] = {"decay": {**about["families"]["decay"], "against": ["inf"]}}
    about["test"]["autoattack_examples"] = 20
    names["work"].__globals__["plan"] = lambda _: about

    def do(jobs: Any) -> None:
        for job in jobs:
            if not (tmp_path / f"{job.file}.json").exists():
                names["work"](job, True, "cpu", tmp_path)

    found = names["everything"](about, "digits", tmp_path, do)
    (point,) = found["autoattack"]
    assert point["size"] == found["chosen"]["decay"]
    assert 0.0 <= point["accuracy"]["inf"] <= point["accuracy"]["clean"] <= 100.0
