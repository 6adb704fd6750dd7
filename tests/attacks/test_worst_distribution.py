"""The worst distribution may have one example in two places: against the dual on a dense grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.oracles.objective import linear_model
from tests.oracles.worst_distribution import by_the_dual
from wafl import WassersteinShift
from wafl.attacks import Population
from wafl.objectives.surrogate import single_lane


@pytest.mark.parametrize("radius", [0.3, 3.0])
@pytest.mark.parametrize("places", [[2.0], [2.0, -0.5, 4.0]])
def test_the_worst_loss_is_that_of_the_dual_even_for_a_single_example(places: list[float], radius: float) -> None:
    x, slope = np.array(places), 3.0
    model = linear_model(np.array([[0.0], [slope]]))
    share = np.full(len(x), 1.0 / len(x))
    loss = WassersteinShift(radius, bounds=None).worst_loss(model, x[:, None], [1] * len(x))
    assert loss == pytest.approx(by_the_dual(slope, x, share, radius), rel=2e-3)


def test_a_weighted_population_is_split_by_its_weights() -> None:
    x, share = np.array([2.0, -0.5, 4.0]), np.array([0.6, 0.1, 0.3])
    model = linear_model(np.array([[0.0], [3.0]]))
    problem, inputs, labels = single_lane(model, x[:, None], [1, 1, 1])
    population = Population(inputs, labels, None, torch.from_numpy(share))
    loss = WassersteinShift(1.5, bounds=None).loss_of_worst(problem, population)
    assert loss == pytest.approx(by_the_dual(3.0, x, share, 1.5), rel=2e-3)


def test_without_restarts_and_with_a_loose_tolerance_the_radius_holds_and_little_is_lost() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(20, 4, generator=generator).double(), torch.arange(20) % 3
    model = linear_model(np.random.default_rng(0).normal(size=(3, 4)))

    def moved(**options: float) -> tuple[float, float]:
        shifted = WassersteinShift(0.3, bounds=(0.0, 1.0), **options)(model, x, y)  # type: ignore[arg-type]
        loss = float(nn.functional.cross_entropy(model(shifted), y).detach())
        return loss, float((shifted - x).square().sum(1).mean().sqrt())

    usual, _ = moved()
    quick, length = moved(restarts=0, tolerance=1e-2)
    assert 0.25 < length <= 0.3 * (1.0 + 1e-9)
    assert 0.98 * usual <= quick <= usual * (1.0 + 1e-3)


@pytest.mark.slow
def test_the_moved_examples_are_no_worse_than_the_worst_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 4, generator=generator).double(), torch.arange(12) % 3
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    shift = WassersteinShift(0.8, bounds=None)
    moved = nn.functional.cross_entropy(model(shift(model, x, y)), y)
    assert float(moved.detach()) <= shift.worst_loss(model, x, y) * (1.0 + 1e-3)
    assert WassersteinShift(0.0).worst_loss(model, x, y) == pytest.approx(
        float(nn.functional.cross_entropy(model(x), y).detach())
    )


def test_a_ball_at_a_layer_has_no_examples_to_split() -> None:
    with pytest.raises(ValueError, match="moves a layer's output"):
        WassersteinShift(1.0, space="0").worst_loss(nn.Sequential(nn.Linear(2, 2)), np.zeros((1, 2)), [0])
