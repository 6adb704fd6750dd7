"""The exact mixture from cuts: against one linear program and the solver that sees all examples; what is sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

import wafl
from tests.oracles.transport import cost_matrix, least_largest_distance
from wafl import weights
from wafl.weights.transport.exchange import cuts, mixture_from_cuts

Points = NDArray[np.float64]


def grid_points(seed: int, points: int, center: float) -> Points:
    """On a grid, so that points repeat within and between clouds."""
    return np.random.default_rng(seed).integers(-3, 4, (points, 2)).astype(np.float64) + center


clouds = st.builds(grid_points, st.integers(0, 2**32 - 1), st.integers(1, 7), st.sampled_from([0.0, 0.3, 5.0]))


def least_distance(sources: list[Points], target: Points, at: Any = None) -> float:
    return least_largest_distance([[cost_matrix(source, target) for source in sources]], at)


@settings(max_examples=8, deadline=None)
@given(st.lists(clouds, min_size=1, max_size=5), clouds, st.sampled_from([1e-3, 1.0, 1e3]))
def test_cuts_give_the_minimum_of_the_full_linear_program(sources: list[Points], target: Points, unit: float) -> None:
    result = weights.mixture([unit * x for x in sources], unit * target, exchange="cuts", tolerance=1e-9)
    wanted = least_distance(sources, target)
    assert result.value / unit**2 == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert 0.0 <= result.gap / unit**2 <= 1e-6
    assert sum(result.weights) == pytest.approx(1.0, abs=1e-12)
    assert min(result.weights) >= 0.0
    assert least_distance(sources, target, result.weights) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def normal_clouds() -> tuple[list[Points], Points]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, 5)) + rng.normal(size=5) for n in (40, 25, 60)], rng.normal(size=(30, 5))


def test_cuts_give_what_the_solver_with_all_examples_gives() -> None:
    sources, target = normal_clouds()
    result, wanted = (weights.mixture(sources, target, exchange=exchange) for exchange in ("cuts", "examples"))
    assert result.value == pytest.approx(wanted.value, rel=1e-6)
    assert result.weights == pytest.approx(wanted.weights, abs=1e-4)
    assert (result.kind, result.rule) == ("exact", "mixture")
    assert all(0 < least <= each + 1e-9 for least, each in zip(result.distances, wanted.distances, strict=True))
    rough = weights.mixture(sources, target, exchange="cuts", tolerance=0.05)
    assert wanted.value - 1e-9 <= rough.value <= wanted.value * 1.05
    assert rough.value - rough.gap <= wanted.value + 1e-9


def test_nearest_from_cuts_has_the_distances_of_pot_to_a_millionth() -> None:
    ot = pytest.importorskip("ot")
    sources, target = normal_clouds()
    result, pooled = (weights.nearest(sources, target, exchange=exchange) for exchange in ("cuts", "examples"))
    wanted = [ot.emd2([], [], cost_matrix(source, target)) for source in sources]
    assert result.distances == pytest.approx(wanted, rel=1e-6)
    assert result.distances == pytest.approx(pooled.distances, rel=1e-6)
    assert (result.weights, result.rule, result.kind) == (pooled.weights, "nearest", "exact")
    assert result.value == min(result.distances)
    assert result.value - result.gap <= min(wanted) + 1e-9
    assert all(math.isnan(error) for error in result.standard_errors)


@pytest.mark.slow
def test_potentials_stay_as_small_as_costs_while_cuts_are_few() -> None:
    """Few cuts let the model of one source rise without end: with 300 points, it overflowed the linear program."""
    rng = np.random.default_rng(0)
    source, target = rng.normal(size=(100, 2)), rng.normal(size=(80, 2)) + 0.3
    spreads: list[float] = []

    def recorded(g: Tensor) -> tuple[Tensor, Tensor]:
        spreads.append(float(g.max() - g.min()))
        return cuts([torch.from_numpy(source)], aim, g)

    aim = torch.from_numpy(target)
    result = mixture_from_cuts(recorded, aim, 1e-3)
    wanted = least_distance([source], target)
    assert wanted - 1e-9 <= result.value <= wanted * (1 + 1e-3)
    assert max(spreads) < 2 * cost_matrix(source, target).max()


def test_sources_send_one_number_and_one_histogram_each_round() -> None:
    sources, target = normal_clouds()
    sent: list[tuple[Tensor, Tensor]] = []

    def recorded(g: Tensor) -> tuple[Tensor, Tensor]:
        assert g.shape == (30,)
        sent.append(cuts([torch.from_numpy(x) for x in sources], aim, g))
        return sent[-1]

    aim = torch.from_numpy(target)
    mixture_from_cuts(recorded, aim, 1e-3)
    assert len(sent) < 150
    for means, shares in sent:
        assert (means.shape, shares.shape) == ((3,), (3, 30))
        counts = shares * torch.tensor([[40.0], [25.0], [60.0]], dtype=torch.float64)
        assert torch.allclose(counts, counts.round(), atol=1e-9), "shares of examples, and nothing else"


def test_at_most_300_points_of_a_target_are_drawn_and_a_federation_will_do() -> None:
    clients = wafl.load_dataset("digits").partition(3, labels_per_client=4, seed=0)
    result = weights.mixture(clients, clients, exchange="cuts", sample=30, features=lambda x: x.flatten(1)[:, :8])
    assert len(result.weights) == 3
    assert math.isnan(result.standard_errors[0])
