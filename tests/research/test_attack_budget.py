"""The budget for a whole distribution: every radius chooses its own model, and comparisons are paired by partition."""

from __future__ import annotations

from typing import Any

import pytest

from research import jobs
from research.registered import attack_budget
from research.registered.attack_frontier import Job
from research.registration import draft_of

ABOUT: dict[str, Any] = {
    "methods": {
        "WAFL": {"size": "gamma", "sizes": {"digits": [1.0, 2.0]}},
        "FedPGM": {"size": "epsilon", "sizes": {"digits": [0.1]}},
        "FedAvg": {"size": "weight_decay", "sizes": {"digits": [0.0]}},
    },
    "data": {"digits": {"partitions": [0, 1, 2], "radii": [0.1, 0.5]}},
    "trials": {"partition": 9, "rates": [0.1, 0.2]},
    "verdict": {"level": 0.05},
}


def accuracy(job: Job, radius: float) -> float:
    """WAFL's best gamma is 2 for the small radius and 1 for the large one; it is ahead of FedPGM at the large one."""
    if job.rate == 0.2 and job.family == "FedPGM":
        return 0.0
    own = {"WAFL": 10.0 * job.size if radius < 0.2 else 60.0 - 10.0 * job.size, "FedPGM": 20.0, "FedAvg": 20.0}
    return own[job.family] + (0 if job.trial else job.partition)


def test_every_radius_chooses_its_own_model_and_a_trial_that_diverged_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(job: Job, **_: Any) -> dict[str, dict[str, float]]:
        if job.family == "FedAvg" and job.rate == 0.1:
            return {}
        return {f"{at:g}": {"clean": 90.0, "accuracy": accuracy(job, at), "loss": 1.0} for at in (0.1, 0.5)}

    monkeypatch.setattr(attack_budget, "work", work)
    rows = attack_budget.rows_of(ABOUT, "digits", jobs.Kept(None, {}), "cpu")
    chosen = {(row["method"], row["radius"]): (row["size"], row["rate"]) for row in rows}
    assert chosen[("WAFL", "0.1")][0] == 2.0
    assert chosen[("WAFL", "0.5")][0] == 1.0
    assert chosen[("FedPGM", "0.1")] == (0.1, 0.1)
    assert chosen[("FedAvg", "0.1")] == (0.0, 0.2)
    assert len(rows) == 3 * 2 * 3
    lines = {(line["radius"], line["rival"]): line for line in attack_budget.compared(ABOUT, rows)}
    assert lines["0.1", "FedPGM"]["mean"].value == pytest.approx(0.0)
    assert lines["0.5", "FedPGM"]["mean"].value == pytest.approx(30.0)
    assert "| digits | 0.5 | FedPGM | **+30.0" in attack_budget.shown(ABOUT, {"digits": rows})


def test_a_draft_runs_at_its_smallest_alone() -> None:
    if draft_of(attack_budget.NAME).is_file():
        with pytest.raises(SystemExit, match="is a draft"):
            attack_budget.main([])
