"""Training by radius: the ball has the size that was asked for, and no radius tears a model apart."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

import wafl
from wafl.engine.spec import Spec
from wafl.schedule import Schedule

RADII = [0.01, 0.1, 1.0, 6.0]


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    digits = wafl.load_dataset("digits")
    return digits.partition(num_clients=10, labels_per_client=3, preprocess="zscore", seed=0)


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_the_radius_is_reached_at_every_scale_and_the_model_survives(clients: wafl.Federation, norm: float) -> None:
    runs = wafl.sweep(
        wafl.models.mlr(clients), clients, wafl.WAFL(radius=1.0, norm=norm), {"radius": RADII},
        rounds=30, cohort=5, local_steps=5, batch_size=32, learning_rate=0.02,
    )  # fmt: skip
    for radius, run in zip(RADII, runs, strict=True):
        achieved = fmean(record.achieved_radius or 0.0 for record in run.history[-10:])
        assert achieved == pytest.approx(radius, rel=0.15)
        assert max(record.achieved_radius or 0.0 for record in run.history) < 1.5 * radius
        if radius <= 0.1:
            assert wafl.evaluate(run, clients).accuracy > 0.8


def test_runs_with_a_gamma_and_runs_with_a_radius_do_not_share_a_batch() -> None:
    schedule = Schedule(rounds=1, local_steps=1)
    shapes = [
        Spec(wafl.WAFL(**options), schedule).shape() for options in ({"gamma": 1.0}, {"radius": 1.0}, {"radius": 2.0})
    ]
    assert shapes[0] != shapes[1] == shapes[2]
