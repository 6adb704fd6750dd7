"""Training by radius: the ball has the size that was asked for, and no radius tears a model apart."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch
from torch import nn

import wafl

RADII = [0.01, 0.1, 1.0, 6.0]


@pytest.fixture(scope="module")
def clients() -> wafl.Federation:
    digits = wafl.load_dataset("digits")
    return digits.partition(num_clients=10, labels_per_client=3, preprocess="zscore", seed=0)


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
@pytest.mark.parametrize("norm", [2, 1, math.inf])
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_a_network_learns_in_a_ball_in_which_it_would_have_become_constant_from_the_start() -> None:
    generator = torch.Generator().manual_seed(0)
    centers, y = torch.randn(4, 8, generator=generator), torch.arange(40) % 4
    pairs = [(centers[y] + 0.3 * torch.randn(40, 8, generator=generator), y) for _ in range(4)]
    clients = wafl.Federation.from_arrays(pairs)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    schedule = {"rounds": 45, "local_steps": 3, "batch_size": 16, "learning_rate": 0.3}
    run = wafl.fit(model, clients, wafl.WAFL(radius=2.6), **schedule)
    assert fmean(record.achieved_radius or 0.0 for record in run.history[-10:]) == pytest.approx(2.6, rel=0.15)
    assert wafl.evaluate(run, clients).accuracy >= 0.6, "0.15 if the ball is whole from the first round on"
    assert (run.history[1].achieved_radius or 0.0) < 0.5, "the ball starts small"


def regression(radius: float, learning_rate: float) -> tuple[torch.Tensor, torch.Tensor, wafl.Run]:
    """One client's examples, and what it learns in an l_inf ball."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    y = x @ torch.tensor([0.5, -0.3, 0.2, 0.0]) + 0.5 * torch.randn(60, generator=generator)
    clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0)
    run = wafl.fit(
        wafl.models.mlr(clients), clients, wafl.WAFL(radius=radius, norm=math.inf), loss="squared_error",
        rounds=60, local_steps=1, batch_size=None, learning_rate=learning_rate,
    )  # fmt: skip
    return x, y, run


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
@pytest.mark.parametrize(("radius", "learning_rate"), [pytest.param(1.0, 0.005, marks=pytest.mark.slow), (6.0, 0.001)])
def test_a_radius_beyond_which_the_best_model_is_constant_is_reached(radius: float, learning_rate: float) -> None:
    """The robust loss is ``(rms r + radius ||w||_1)^2``: from ``max_j |cov(x_j, y)| / std(y)`` on, ``w = 0`` is best.

    The gamma in closed form then follows a w that steps back and forth around 0, and differs by factors from one round
    to the next; the radius is what was asked for.
    """
    x, y, run = regression(radius, learning_rate)
    covariance = ((x - x.mean(0)) * (y - y.mean())[:, None]).mean(0)
    assert radius > float(covariance.abs().max() / y.std(correction=0)), "the best model is constant"
    achieved = [record.achieved_radius or 0.0 for record in run.history[-20:]]
    assert fmean(achieved) == pytest.approx(radius, rel=0.15)
    (weight,) = [value for value in run.params.values() if value.ndim == 2]
    assert float(weight.abs().sum()) < 0.1


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
@pytest.mark.parametrize("radius", [0.01, 0.2])
def test_the_gamma_of_an_linf_regression_is_the_one_in_closed_form(radius: float) -> None:
    """``sup over d of (r + <w, d>)^2 - gamma ||d||_inf^2`` moves by ``|r| ||w||_1 / (gamma - ||w||_1^2)``."""
    x, y, run = regression(radius, 0.05)
    weight, bias = (run.params[name].flatten().double() for name in sorted(run.params, reverse=True))
    residual, slope = x.double() @ weight + bias - y.double(), float(weight.abs().sum())
    gamma = slope**2 + float(residual.square().mean().sqrt()) * slope / radius
    assert run.history[-1].gamma == pytest.approx(gamma, rel=0.02)
    assert run.history[-1].achieved_radius == pytest.approx(radius, rel=0.02)
