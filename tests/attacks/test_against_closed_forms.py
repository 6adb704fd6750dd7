"""PGD, FGSM and the worst Wasserstein shift, against closed forms, duals and plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.oracles import objective as oracles
from wafl import FGSM, PGD, Federation, WassersteinShift, evaluate
from wafl.attacks import Population
from wafl.models import MLR
from wafl.objectives.surrogate import single_lane

NORMS = (1, 2, math.inf)


def population(seed, classes=3, size=40):
    rng = np.random.default_rng(seed)
    weight, bias, x = rng.normal(size=(classes, 4)), rng.normal(size=classes), rng.normal(size=(size, 4))
    share = rng.uniform(0.1, 1.0, size=size)
    return rng, weight, bias, x, share / share.sum()


def shift(model, x, y, share, radius, norm=2, loss="cross_entropy", **options):
    problem, inputs, labels = single_lane(model, x, y, loss)
    attack = WassersteinShift(radius, norm, **options)
    return attack.move(problem, Population(inputs, labels, weight=torch.from_numpy(share)))[0].double().numpy()


def mean_cost(moved, x, share, norm=2):
    return float(share @ np.linalg.norm(moved - x, ord=norm, axis=1) ** 2)


def mean_cross_entropy(weight, bias, x, y, share):
    return float(share @ [float(oracles.cross_entropy(weight, bias, z, int(k))) for z, k in zip(x, y, strict=True)])


# The worst shift of a distribution.


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.01, 0.3, 1.0, 20.0])
def test_the_shift_spends_its_radius_and_no_more(norm, radius):
    rng, weight, bias, x, share = population(0)
    y = rng.integers(3, size=len(x))
    moved = shift(oracles.linear_model(weight, bias), x, y, share, radius, norm)
    assert 0.98 * radius**2 <= mean_cost(moved, x, share, norm) <= radius**2 * (1 + 1e-9)


def test_the_shift_spends_its_radius_in_float32():
    rng, weight, bias, x, share = population(0)
    y = rng.integers(3, size=len(x))
    for radius in (0.05, 0.5, 5.0):
        moved = shift(oracles.linear_model(weight, bias).float(), x, y, share, radius)
        cost = mean_cost(moved, x.astype(np.float32), share)
        assert 0.98 * radius**2 <= cost <= radius**2 * (1 + 1e-5)


@pytest.mark.slow
def test_a_shift_with_bounds_stays_in_the_box():
    rng, weight, bias, _, share = population(1, size=10)
    x, y = rng.uniform(size=(10, 4)), rng.integers(3, size=10)
    for norm in NORMS:
        for radius in (0.3, 50.0):
            moved = shift(oracles.linear_model(weight, bias), x, y, share, radius, norm, bounds=(0.0, 1.0))
            assert mean_cost(moved, x, share, norm) <= radius**2 * (1 + 1e-5)
            assert moved.min() >= 0.0
            assert moved.max() <= 1.0


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [0.01, 0.3, 3.0])
def test_the_worst_squared_error_of_one_output_matches_its_closed_form(norm, radius):
    """``sqrt(worst) = sqrt(E r^2) + rho ||w||_*``."""
    rng, weight, bias, x, share = population(2, classes=1)
    y = rng.normal(size=len(x))
    moved = shift(oracles.linear_model(weight, bias), x, y, share, radius, norm, "squared_error")
    rest, reached = (math.sqrt(share @ (z @ weight[0] + bias[0] - y) ** 2) for z in (x, moved))
    worst = rest + radius * np.linalg.norm(weight[0], ord=oracles.dual_order(norm))
    assert mean_cost(moved, x, share, norm) <= radius**2 * (1 + 1e-5)
    assert reached == pytest.approx(worst, rel=1e-3)


@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
def test_the_worst_squared_error_of_several_outputs_equals_the_dual(radius):
    rng, weight, bias, x, share = population(3)
    y = rng.normal(size=(len(x), 3))
    moved = shift(oracles.linear_model(weight, bias), x, y, share, radius, loss="squared_error")
    reached = float(share @ ((moved @ weight.T + bias - y) ** 2).sum(1))
    dual = oracles.squared_error_worst_case(x @ weight.T + bias - y, weight, share, radius)
    assert reached == pytest.approx(dual, rel=1e-3)


@pytest.mark.parametrize("radius", [0.05, 0.2, 0.4])
def test_the_worst_cross_entropy_equals_the_dual(radius):
    rng, weight, bias, x, share = population(4)
    y = rng.integers(3, size=len(x))
    moved = shift(oracles.linear_model(weight, bias), x, y, share, radius)
    lowest = max(float(np.sum((a - b) ** 2)) for a in weight for b in weight) / 8.0
    dual, gamma = oracles.cross_entropy_worst_case(weight, bias, x, y, share, radius, lowest)
    assert gamma > 1.01 * lowest  # so the inner problem is concave for the whole population
    assert mean_cross_entropy(weight, bias, moved, y, share) == pytest.approx(dual, rel=1e-4)


def test_if_the_cost_jumps_only_some_examples_move():
    """Fifty equal examples: at any one gamma, either all stay on their side of the boundary or all cross it."""
    model, x, y = oracles.linear_model(np.array([[4.0], [0.0]])), np.full((50, 1), 0.6), np.zeros(50, dtype=int)
    radius = 0.8
    moved = WassersteinShift(radius, steps=2000)(model, x, y).numpy()[:, 0]
    jumps = np.diff(np.sort(moved))
    assert (jumps > 0.3).sum() in (1, 2)  # two groups, and at most one example between them
    assert 0 < (moved < 0.0).sum() < 50
    assert 0.95 * radius**2 <= np.mean((moved - 0.6) ** 2) <= radius**2 * (1 + 1e-9)
    assert np.logaddexp(0.0, -4.0 * moved).mean() >= 0.95 * oracles.sure_worst_case(4.0, 0.6, radius)


@pytest.mark.parametrize(("position", "radius"), [(1.0, 0.5), (1.0, 1.0), (1.0, 2.0), (2.0, 2.0), (2.0, 3.0)])
def test_a_population_that_the_model_is_sure_of_is_still_shifted(position, radius):
    """Gradients are almost zero, yet the dual shows how bad the ball is."""
    model = oracles.linear_model(np.array([[4.0], [0.0]]))
    x, y = np.full((50, 1), position), np.zeros(50, dtype=int)
    moved = WassersteinShift(radius)(model, x, y).numpy()[:, 0]
    assert np.mean((moved - position) ** 2) <= radius**2 * (1 + 1e-5)
    reached, worst = np.logaddexp(0.0, -4.0 * moved).mean(), oracles.sure_worst_case(4.0, position, radius)
    assert 0.9 * worst <= reached <= worst * (1 + 1e-3)


def test_a_radius_of_zero_moves_nothing():
    x = np.ones((3, 4))
    assert np.array_equal(WassersteinShift(0.0)(nn.Linear(4, 2).double(), x, [0, 1, 0]), x)


def test_a_flat_loss_moves_nothing():
    x = np.ones((3, 4))
    assert np.array_equal(WassersteinShift(1.0)(oracles.linear_model(np.zeros((2, 4))), x, [0, 1, 0]), x)


def test_attacks_describe_their_norm_size_and_unit():
    assert PGD(0.3).describe("z-score") == "l_inf PGD, epsilon 0.3 (z-score), 40 steps, within the bounds of the data"
    assert FGSM(0.25, norm=2, bounds=(0, 1)).describe("pixels") == "l2 FGSM, epsilon 0.25 (pixels), within [0, 1]"
    shift = WassersteinShift(2, bounds=None)
    assert shift.describe("pixels") == "worst l2 Wasserstein shift, radius 2 (pixels), unbounded"


# Testing on the clients.


def test_clients_without_test_examples_are_left_out():
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(size, 2)), np.arange(size) % 2) for size in (1, 8)]
    clients = Federation.from_arrays(pairs)
    assert [row.name for row in evaluate(MLR((2,), 2), clients).per_client] == ["client 1"]


# At a layer's output.


@pytest.fixture(scope="module")
def tanh_runs() -> tuple[wafl.Federation, list[wafl.Run]]:
    generator = torch.Generator().manual_seed(3)
    pairs = [(torch.randn(12, 6, generator=generator), torch.arange(12) % 3) for _ in range(3)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    grid = {"learning_rate": [0.1, 0.5]}
    return clients, list(wafl.sweep(model, clients, wafl.FedAvg(), grid, rounds=3, local_steps=2))


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.slow
def test_a_wasserstein_shift_at_a_layer_is_one_of_its_outputs(tanh_runs, norm):
    clients, runs = tanh_runs
    scores = [wafl.evaluate(run, clients, attack=wafl.WassersteinShift(0.4, norm=norm, space="1")) for run in runs]
    for run, score in zip(runs, scores, strict=True):
        front, head = run.model[:2], run.model[2]
        with torch.no_grad():
            x = front(clients.test.x.to(torch.float64))
        features = replace(clients.test, raw=x)
        behind = replace(clients, test=features)
        expected = wafl.evaluate(head, behind, attack=wafl.WassersteinShift(0.4, norm=norm, bounds=None))
        assert score.loss == pytest.approx(expected.loss, rel=1e-6)
        assert score.loss > 1.05 * wafl.evaluate(run, clients).loss
    rows = wafl.compare(runs, clients, attacks=wafl.WassersteinShift(0.4, norm=norm, space="1")).rows
    assert [row.score.loss for row in rows] == pytest.approx([score.loss for score in scores], rel=1e-9)


def test_a_wasserstein_shift_at_a_layer_gives_no_examples_and_takes_no_bounds(tanh_runs):
    clients, runs = tanh_runs
    shift = wafl.WassersteinShift(0.4, space="1")
    assert "radius 0.4 (at the output of 1)" in shift.describe("pixels")
    with pytest.raises(ValueError, match="not examples: use wafl"):
        shift(runs[0], clients.test.x, clients.test.y)
    with pytest.raises(ValueError, match="leave one out"):
        wafl.WassersteinShift(0.4, space="1", bounds=(0, 1))
