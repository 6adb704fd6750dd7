"""Squared W_2 distances: exact against assignment, quantiles and formulas, debiased entropic, OTDD, standard errors."""

import itertools

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import wafl
from tests.oracles.transport import cost_matrix, w2_by_assignment
from wafl.base.random import Key, Purpose, bits
from wafl.weights.transport import distance
from wafl.weights.transport.clouds import Sampling, read_clients

sizes = st.integers(1, 9)
seeds = st.integers(0, 2**32 - 1)


def cloud(seed, points, features=2, spread=1.0, center=0.0):
    return spread * np.random.default_rng(seed).normal(size=(points, features)) + center


@settings(max_examples=30)
@given(seeds, sizes, st.integers(1, 4))
def test_the_exact_distance_equals_the_best_assignment(seed, points, features):
    x, y = cloud(seed, points, features), cloud(seed + 1, points, features, 2.0)
    x[0] = x[-1]  # a repeated point
    assert distance(x, y).value == pytest.approx(w2_by_assignment(x, y), rel=1e-9, abs=1e-12)


def test_points_far_from_the_origin_lose_no_precision():
    x, y = cloud(0, 40, 3), cloud(1, 40, 3)
    assert distance(x + 1e6, y + 1e6).value == pytest.approx(distance(x, y).value, rel=1e-6)


def test_problems_that_need_more_pivots_than_pots_default_are_solved():
    """ot.emd stops after 100,000 pivots unless told otherwise, with a wrong answer and a warning."""
    x, y = cloud(0, 900, 20), cloud(1, 900, 20)
    value = distance(x, y).value
    assert value == pytest.approx(w2_by_assignment(x, y), rel=1e-9)
    with pytest.raises(UserWarning, match="numItermax"):
        ot.emd2([], [], cost_matrix(x, y), numItermax=1000)


@pytest.mark.parametrize("method", ["exact", "entropic"])
@pytest.mark.parametrize("sample", [None, 30])
def test_a_distribution_has_distance_0_to_itself(method, sample):
    x, y = cloud(0, 70, 4), np.arange(70) % 3
    for labels in (False, True):
        result = distance((x, y), (x.copy(), y.copy()), method=method, sample=sample, label_aware=labels)
        assert result.value == pytest.approx(0.0, abs=1e-9)
        assert result.standard_error == pytest.approx(0.0, abs=1e-9)


def test_the_entropic_distance_equals_pots_debiased_value():
    x, y = cloud(0, 40), cloud(1, 30, center=1.0)
    epsilon = 0.2 * cost_matrix(x, y).mean()
    wanted = ot.solve_sample(x, y, reg=epsilon, debias=True, max_iter=100_000).value
    assert distance(x, y, method="entropic", regularization=0.2).value == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
def test_too_little_regularization_raises_an_error():
    with pytest.raises(RuntimeError, match=r"did not converge at epsilon=.*: raise regularization"):
        distance(cloud(0, 12), cloud(1, 12, center=1.0), method="entropic", regularization=1e-6)


@pytest.mark.parametrize(("population", "drawn"), [(20_000, 200), (400, 200)])
def test_the_standard_error_matches_the_spread_of_new_draws(population, drawn):
    """Within a quarter of the standard deviation over 60 draws, even if half of all points are drawn."""
    x, y = cloud(0, population, 2, 1.0), cloud(1, population, 2, 1.5, 2.0)
    distances = [distance(x, y, sample=drawn, seed=seed) for seed in range(60)]
    spread = np.std([each.value for each in distances], ddof=1)
    assert np.mean([each.standard_error for each in distances]) == pytest.approx(spread, rel=0.25)


def test_the_label_aware_distance_equals_that_of_a_double_loop():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(12, 2)), np.repeat([0, 1, 5], 4)
    x_other, y_other = generator.normal(size=(10, 2)) + 1.0, np.repeat([3, 1], 5)
    cost = cost_matrix(x, x_other)
    for i, j in itertools.product(range(12), range(10)):
        a, b = x[y == y[i]], x_other[y_other == y_other[j]]
        repeats = np.lcm(len(a), len(b))  # equal numbers of copies, so that an assignment is the transport
        cost[i, j] += w2_by_assignment(np.repeat(a, repeats // len(a), 0), np.repeat(b, repeats // len(b), 0))
    rows, columns = np.repeat(np.arange(12), 5), np.repeat(np.arange(10), 6)
    from scipy.optimize import linear_sum_assignment

    copies = cost[rows][:, columns]
    wanted = copies[linear_sum_assignment(copies)].mean()
    value = distance((x, y), (x_other, y_other), label_aware=True).value
    assert value == pytest.approx(wanted, rel=1e-9)
    assert value > distance(x, x_other).value


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", ["inputs", "classes", "targets"])
def test_the_distance_is_the_least_cost_of_the_ball(order, kind):
    """``||x - x'||^p``, plus the price of a label in the ball, minimized over assignments of equally many points."""
    from scipy.optimize import linear_sum_assignment

    generator = np.random.default_rng(1)
    x, other = generator.normal(size=(2, 20, 3))
    labels, others = generator.integers(4, size=(2, 20)) if kind == "classes" else generator.normal(size=(2, 20, 2))
    cost = np.sqrt(cost_matrix(x, other)) ** order
    if kind == "classes":
        cost += 0.7 * (labels[:, None] != others)
    elif kind == "targets":
        cost += 0.7 * cost_matrix(labels, others)
    pair = (x, other) if kind == "inputs" else ((x, labels), (other, others))
    result = distance(*pair, label_cost=None if kind == "inputs" else 0.7, order=order)
    assert result.value == pytest.approx(cost[linear_sum_assignment(cost)].mean(), rel=1e-9)


@pytest.mark.parametrize("order", [1, 2])
def test_the_ball_of_the_distance_holds_what_the_objective_moves(order):
    """Equation 3 and the ball have one ground cost: moved examples, labels too, are at most their mean cost away."""
    torch.manual_seed(0)
    x, y = torch.rand(40, 5).double(), torch.arange(40) % 3
    model = torch.nn.Linear(5, 3).double()
    options = {"gamma": 0.05, "label_cost": 0.4, "power": order, "bounds": (-1.0, 2.0)}
    moved = wafl.robust_loss(model, x, y, **options)
    assert (moved.y_adv != y).any()
    apart = (moved.x_adv - x).norm(dim=1) ** order + 0.4 * (moved.y_adv != y)
    result = distance((x, y), (moved.x_adv, moved.y_adv), label_cost=0.4, order=order)
    assert result.value <= float(apart.mean()) * (1.0 + 1e-9)


def test_features_are_compared_instead_of_examples():
    images = torch.from_numpy(cloud(0, 20, 12)).view(20, 3, 4)
    seen = []

    def first_row(x):
        seen.append(tuple(x.shape))
        return x[:, 0] * 2.0

    result = distance(images, images + 1.0, features=first_row)
    assert result.value == pytest.approx(4.0 * 4, rel=1e-9)
    assert seen == [(20, 3, 4), (20, 3, 4)]


def test_bytes_tensors_arrays_and_lists_give_the_same_distance():
    x, y = np.random.default_rng(0).integers(0, 255, (2, 9, 2, 2), dtype=np.uint8)
    wanted = w2_by_assignment(x.reshape(9, 4).astype(float), y.reshape(9, 4).astype(float))
    for read in (
        np.asarray,
        torch.from_numpy,
        lambda v: v.tolist(),
        lambda v: v[::-1],
        lambda v: torch.tensor(v).float(),
    ):
        assert distance(read(x), read(y)).value == pytest.approx(wanted)


def test_a_draw_does_not_depend_on_the_other_sources():
    first, second, other = cloud(0, 50), cloud(1, 60), cloud(2, 70)
    draw = lambda clients, seed=0: [c.x - c.x.mean(0) for c in read_clients(clients, Sampling(20, seed))]  # noqa: E731
    alone = draw([first])[0]
    for clients in ([first, second], [first, other, second]):
        torch.testing.assert_close(draw(clients)[0], alone)
    torch.testing.assert_close(draw([other, second])[1], draw([first, second])[1])
    assert not torch.equal(draw([first, second], seed=1)[0], alone)
    assert not torch.equal(*draw([first, first]))


def test_points_are_drawn_without_replacement_by_the_counter_based_generator():
    numbers = np.arange(100.0)[:, None]
    (drawn,) = read_clients([numbers], Sampling(30, seed=7))
    order = bits(Key.of(7), Purpose.TRANSPORT, 100).argsort(stable=True)[:30].sort().values
    offset = drawn.x[0, 0] - order[0]
    torch.testing.assert_close(drawn.x[:, 0], order + offset)
    assert (len(drawn), drawn.total) == (30, 100)


def test_a_federation_stands_for_its_training_examples():
    pairs = [(cloud(i, 12, 3).astype(np.float32), np.arange(12) % 2) for i in range(3)]
    clients = wafl.Federation.from_arrays(pairs)
    arrays = [clients.train.of(i)[0] for i in range(3)]
    assert wafl.weights.nearest(clients, arrays[2]).distances == wafl.weights.nearest(arrays, arrays[2]).distances
    assert wafl.weights.nearest(clients, clients).distances == pytest.approx(
        wafl.weights.nearest(arrays, torch.cat(arrays)).distances
    )
