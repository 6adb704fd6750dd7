"""The nearest source and the nearest mixture: against one linear program, against other weights, and at scale."""

import json
from dataclasses import replace

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wafl
from tests.oracles.transport import cost_matrix, least_largest_distance
from wafl import weights
from wafl.weights.transport.costs import solve_pair
from wafl.weights.transport.cutting_planes import MixtureDistance

clouds = st.builds(
    lambda seed, points, features, center: np.random.default_rng(seed).integers(-3, 4, (points, features)) + center,
    st.integers(0, 2**32 - 1),
    st.integers(1, 7),
    st.just(2),
    st.sampled_from([0.0, 0.3, 5.0]),
)  # on a grid, so that points repeat within and between clouds


def mixture_by_lp(sources, target, at=None):
    return least_largest_distance([[cost_matrix(source, target) for source in sources]], at)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(clouds, min_size=1, max_size=9), clouds, st.sampled_from([1e-5, 1.0, 1e4]))
def test_mixture_equals_the_full_linear_program(sources, target, unit):
    """Unequal sizes, repeated points, one source, one point, more sources than points; in any unit."""
    result = weights.mixture([unit * source for source in sources], unit * target)
    result = replace(result, value=result.value / unit**2, gap=result.gap / unit**2)
    wanted = mixture_by_lp(sources, target)
    assert result.value == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    assert result.value - result.gap <= wanted + 1e-6
    assert result.gap <= 1e-6
    assert sum(result.weights) == pytest.approx(1.0, abs=1e-12)
    assert min(result.weights) >= 0.0
    assert mixture_by_lp(sources, target, result.weights) == pytest.approx(result.value, rel=1e-6, abs=1e-6)


@settings(max_examples=30)
@given(st.lists(clouds, min_size=2, max_size=4), clouds, st.sampled_from([0.3, 0.03]))
def test_the_gap_encloses_the_minimum(sources, target, tolerance):
    result = weights.mixture(sources, target, tolerance=tolerance)
    assert result.gap <= tolerance * result.value + 1e-9
    assert result.value - result.gap - 1e-7 <= mixture_by_lp(sources, target) <= result.value + 1e-7


def test_nearest_puts_all_weight_on_the_nearest_source():
    generator = np.random.default_rng(0)
    sources = [generator.normal(size=(20, 3)) + center for center in (4.0, 1.0, 2.0)]
    target = generator.normal(size=(15, 3))
    result = weights.nearest(sources, target)
    assert result.weights == (0.0, 1.0, 0.0)
    assert result.distances == pytest.approx([mixture_by_lp([source], target) for source in sources])
    assert result.value == min(result.distances) == pytest.approx(result.radius**2)
    assert (result.gap, result.kind) == (0.0, "exact")
    assert weights.nearest(sources, target, method="entropic").weights == (0.0, 1.0, 0.0)
    assert weights.nearest(sources, target, method="entropic").kind == "entropic"


def test_tiny_units_lose_no_precision():
    """POT's tolerances are absolute."""
    generator = np.random.default_rng(61)
    sources = [generator.normal(size=(n, 2)) for n in (8, 11, 5, 13, 9, 10, 7, 12)]
    target = np.concatenate(sources)[::2]
    result, tiny = (
        weights.mixture(sources, target),
        weights.mixture([1e-6 * source for source in sources], 1e-6 * target),
    )
    assert tiny.value == pytest.approx(1e-12 * result.value, rel=1e-8)
    assert tiny.gap <= 1e-8 * tiny.value


def test_the_price_of_a_label_moves_the_mixture_to_the_targets_shares_of_labels():
    """Two sources with the same points, one of each class; the target has a quarter of class 1."""
    points = np.arange(8.0)[:, None]
    sources = [(points, np.full(8, label)) for label in (0, 1)]
    result = weights.mixture(sources, (points, np.array([0, 0, 1, 0, 0, 0, 1, 0])), label_cost=100.0)
    assert result.weights == pytest.approx((0.75, 0.25))
    ball = weights.cover(sources, label_cost=100.0)
    assert ball.weights == pytest.approx((0.5, 0.5), abs=1e-6)
    assert ball.value == pytest.approx(50.0, rel=1e-6)  # half of the mass changes its label
    assert weights.cover(sources).value == pytest.approx(0.0, abs=1e-9)


def test_label_aware_mixture_follows_the_labels():
    """Two sources with the same points but different labels: only the label-aware cost can tell them apart."""
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.normal(size=(30, 2)), generator.normal(size=(30, 2)) + 6.0])
    by_place, at_random = np.repeat([0, 1], 30), np.arange(60) % 2
    sources = [(x, at_random), (x + 0.01, by_place)]
    target = (x + 0.02 * generator.normal(size=x.shape), by_place)
    assert weights.mixture(sources, target, label_aware=True).weights == pytest.approx((0.0, 1.0), abs=1e-3)
    assert weights.nearest(sources, target).weights == (1.0, 0.0)


def test_every_potential_gives_a_cut_below_the_distance():
    generator = np.random.default_rng(0)
    sources = [generator.normal(size=(n, 2)) + i for i, n in enumerate((4, 6, 3))]
    target = generator.normal(size=(5, 2))
    costs = [torch.from_numpy(cost_matrix(source, target)) for source in sources]
    function = MixtureDistance(costs, [solve_pair(cost) for cost in costs])
    for _ in range(20):
        cut = function.cut(torch.from_numpy(5.0 * generator.normal(size=5)))
        point = torch.from_numpy(generator.dirichlet(np.ones(3)))
        exact = function.at(point, slack=0.0)
        assert float(cut @ point) <= exact.value + 1e-9
        assert float(exact.cut @ point) == pytest.approx(exact.value, abs=1e-9)
        assert exact.value == pytest.approx(mixture_by_lp(sources, target, point.numpy()), abs=1e-7)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5])
def test_searching_among_few_arcs_finds_the_exact_value(tolerance):
    """With far more arcs closed than open, the value still equals POT's on all of them."""
    generator = np.random.default_rng(0)
    sources = [
        generator.normal(size=(150, 8)) * generator.uniform(0.5, 2, 8) + generator.normal(size=8) for _ in range(6)
    ]
    target = np.concatenate([source[:25] for source in sources[:4]]) + 0.5 * generator.normal(size=(100, 8))
    result = weights.mixture(sources, target, tolerance=tolerance)
    assert result.gap <= tolerance * result.value
    counted = [i for i, weight in enumerate(result.weights) if weight > 0]
    mass = np.concatenate([np.full(150, result.weights[i] / 150) for i in counted])
    cost = cost_matrix(np.concatenate([sources[i] for i in counted]), target)
    exact = ot.emd2(mass, np.full(100, 0.01), cost, numItermax=10**8)
    assert exact - 1e-9 <= result.value <= exact + 0.1 * max(result.gap, 1e-9) + 1e-9


@pytest.mark.parametrize(
    "make",
    [
        lambda clients: weights.nearest(clients, clients.train.of(1)[0]),
        lambda clients: weights.mixture(clients, clients.train.of(1)[0] + 0.1),
        lambda clients: weights.cover(clients),
        lambda clients: weights.barycenter(clients),
        lambda clients: weights.nearest(clients, clients.train.of(1)[0] + 0.1, exchange="cuts"),
        lambda clients: weights.mixture(clients, clients.train.of(1)[0] + 0.1, exchange="cuts"),
    ],
)
def test_fit_accepts_the_weights_and_the_run_keeps_them(make, tmp_path):
    generator = np.random.default_rng(0)
    pairs = [(generator.normal(size=(24, 3)).astype(np.float32) + i, np.arange(24) % 2) for i in range(3)]
    clients = wafl.Federation.from_arrays(pairs)
    result = make(clients)
    assert isinstance(result, weights.Fixed)
    assert str(result).startswith(f"{result.rule}: W_2^2 = ")
    run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=1, local_steps=1, client_weights=result)
    assert run.client_weights.tolist() == pytest.approx(result.weights)
    run.save(tmp_path / "run")
    kept = wafl.load_run(tmp_path / "run")
    assert kept.client_weights.tolist() == pytest.approx(result.weights)
    settings = kept.settings["method"]["client_weights"]
    assert (settings["type"], settings["rule"], settings["value"]) == ("TransportWeights", result.rule, result.value)
    json.dumps(kept.settings)
