"""Certificates beyond the sample, against exact probabilities, brute force and draws from a known truth."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import wafl
from tests.oracles import betting, theory
from tests.oracles import objective as oracles
from tests.theory.cases import NORMS, a_case
from wafl.objectives import ObjectiveState
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.theory import certify
from wafl.theory.certificates.sampling import Domain, Moments, Sample, largest_surrogate
from wafl.theory.certificates.upper import ErrorSurrogate
from wafl.theory.constants.assumptions import data_free_constants


def exact_coverage(sizes, weights, probabilities, most, bets, delta):
    """The probability that the bound covers the mean of coins that show ``most`` or 0, by the binomial distribution."""
    truth = most * np.dot(weights, probabilities)
    covered = 0.0
    for heads in itertools.product(*(range(size + 1) for size in sizes)):
        means = [most * count / size for count, size in zip(heads, sizes, strict=True)]
        sample = Sample(sizes, means, [most * mean for mean in means], most)
        if sample.upper_mean(weights, bets, delta) >= truth:
            covered += math.prod(
                stats.binom.pmf(count, size, p) for count, size, p in zip(heads, sizes, probabilities, strict=True)
            )
    return covered


@pytest.mark.parametrize("probabilities", [(0.5, 0.5), (0.02, 0.1), (0.9, 0.3), (0.99, 0.99)])
@pytest.mark.parametrize("delta", [0.05, 0.4])
def test_the_upper_mean_covers_the_mean_of_coins_as_often_as_it_says(probabilities, delta):
    for bets in ((0.2, 0.2), (0.45, 0.05)):
        assert exact_coverage((12, 25), (0.3, 0.7), probabilities, 2.0, bets, delta) >= 1.0 - delta


def moments_of(xs, most):
    return Sample([len(x) for x in xs], [x.mean() for x in xs], [(x**2).mean() for x in xs], most)


@pytest.mark.parametrize("bet", [0.05, 0.3, 0.48])
@pytest.mark.parametrize("heads", [0, 1, 9, 30])
def test_of_coins_the_moments_tell_all_that_the_plain_capital_does(bet, heads):
    x = np.where(np.arange(30) < heads, 2.0, 0.5)  # some are the largest and the others the same
    result = moments_of([x], 2.0).upper_mean([1.0], [bet], 0.05)
    plain = betting.upper_mean(x, 2.0, bet, 0.05, 4000)
    assert plain - 2.0 / 4000 <= result * (1.0 + 1e-9)
    assert result <= plain * (1.0 + 1e-9)


@pytest.mark.slow
def test_of_two_clients_the_bound_is_the_smallest_product_of_their_capitals():
    rng = np.random.default_rng(0)
    for weights in ([0.5, 0.5], [0.2, 0.8], [0.7, 0.3]):
        xs, trained = ([np.where(rng.uniform(size=n) < 0.1, 2.0, 0.3) for n in (15, 40)] for _ in range(2))
        bets = moments_of(trained, 2.0).bets(weights, [15, 40], 0.05)
        result = moments_of(xs, 2.0).upper_mean(weights, bets, 0.05)
        plain = betting.upper_mixture(xs, weights, 2.0, bets, 0.05, 150)
        assert plain <= result * (1.0 + 1e-9)
        assert result <= plain + 0.02  # a step of the grid is 0.013; and each share of the capital has its own least


def test_whatever_the_numbers_are_the_moments_promise_no_less_than_the_plain_capital():
    rng = np.random.default_rng(1)
    for shape in (0.2, 1.0, 5.0):
        x = np.minimum(rng.gamma(shape, 0.7 / shape, size=63), 8.0)
        for bet in (0.02, 0.06, 0.11):
            result = moments_of([x], 8.0).upper_mean([1.0], [bet], 0.05)
            plain = betting.upper_mean(x, 8.0, bet, 0.05, 2000)
            assert plain - 8.0 / 2000 <= result <= 1.35 * plain


def test_the_upper_mean_comes_down_to_the_mean_as_fast_as_the_deviation_over_the_root_of_the_size():
    size, deviation = 10**6, 0.1
    sample = Sample([size], [0.5], [0.25 + deviation**2], 1.0)
    margin = sample.upper_mean([1.0], sample.bets([1.0], [size], 0.05), 0.05) - 0.5
    # Most of the capital makes these bets: 1 / 0.85 in place of 1.
    assert margin == pytest.approx(deviation * math.sqrt(2.0 * math.log(20.0 / 0.85) / size), rel=0.05)


def test_bets_from_examples_that_spread_too_little_still_pay():
    """Training examples that are learned by heart say nothing about the spread of others: smaller bets are hedged."""
    x = np.random.default_rng(0).gamma(0.5, 1.5, size=5000).clip(0.0, 20.0)
    sample, learned = moments_of([x], 20.0), Sample([5000], [0.01], [0.0001], 20.0)
    known, other = (sample.upper_mean([1.0], each.bets([1.0], [5000], 0.05), 0.05) for each in (sample, learned))
    assert x.mean() < known < other <= x.mean() + 2.0 * (known - x.mean())


def test_what_says_nothing_is_bounded_by_the_largest_number():
    assert Sample([5], [2.0], [4.0], 2.0).upper_mean([1.0], [0.4], 0.05) == 2.0
    assert Sample([5], [0.1], [0.1], 2.0).upper_mean([1.0], [0.0], 0.05) == 2.0
    assert Sample([5], [2.0], [4.0], 2.0).bets([1.0], [5], 0.05) == [0.0]
    sample = Sample([50, 10**6], [0.1, 2.0], [0.1, 4.0], 2.0)
    assert sample.upper_mean([1.0, 0.0], [0.4, 0.4], 0.05) == Sample([50], [0.1], [0.1], 2.0).upper_mean(
        [1.0], [0.4], 0.05
    )
    with pytest.raises(ValueError, match=r"every bet must lie in \[0, 1 / 2\)"):
        sample.upper_mean([0.5, 0.5], [0.4, 0.5], 0.05)


def corners(dimension, low, high):
    return np.array(list(itertools.product((low, high), repeat=dimension)))


@pytest.mark.parametrize("norm", NORMS)
def test_no_example_of_the_box_has_a_larger_surrogate(norm):
    case = a_case("mlr")
    task = make_task(case.model, case.loss)
    params = task.initial()
    steep = data_free_constants(task, params, 2, norm)["L_z"]
    points, labels = zip(*itertools.product(corners(2, -1.0, 2.0), range(3)), strict=True)
    x, y = np.array(points), np.array(labels)
    losses = theory.plain_losses(case.model, x, y)
    at_rest = largest_surrogate(task, params, Domain((2,), (-1.0, 2.0), 3), steep, math.inf, norm)
    assert losses.max() <= at_rest <= losses.max() + math.log(2.0)  # a convex loss is largest at a corner
    gamma = 0.6 * theory.farthest_rows(case.model.weight.detach().numpy(), norm) ** 2 / 4.0
    moved = type(case)(case.model, case.loss, x, y, (len(x),), (1.0,))
    worst = max(theory.searched_phi(moved, row, gamma, norm, 6.0) for row in np.argsort(losses)[-3:])
    assert worst <= largest_surrogate(task, params, Domain((2,), (-1.0, 2.0), 3), steep, gamma, norm)


def test_no_example_of_the_box_gains_more_in_a_network_than_along_its_steepest_line():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        for value, numbers in zip(model.parameters(), ([[1.0]], [0.0], [[0.0], [8.0]], [0.0, 0.0]), strict=True):
            value.copy_(torch.tensor(numbers))
    task = make_task(model, "cross_entropy")
    steep = data_free_constants(task, task.initial(), 1, 2)["L_z"]
    moved = np.linspace(0.0, 5.0, 501)
    phi = (np.log1p(np.exp(8.0 * moved)) - 4.0 * (moved - 1.0) ** 2).max()  # of label 0 at 1, by brute force
    assert phi <= largest_surrogate(task, task.initial(), Domain((1,), (0.0, 1.0), 2), steep, 4.0, 2) <= phi + 0.1


def world(num_clients, size, seed, dimension=2):
    """Clients whose examples are drawn from clipped normal distributions of their own, with noisy labels."""
    rng = np.random.default_rng(seed)
    pairs = []
    for client in range(num_clients):
        x = np.clip(0.5 + 0.05 * client / num_clients + 0.2 * rng.normal(size=(2 * size, dimension)), 0.0, 1.0)
        y = (x[:, 0] + 0.1 * rng.normal(size=2 * size) > 0.5).astype(np.int64)
        pairs.append((x[:size], y[:size], x[size:], y[size:]))
    return wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), num_classes=2)


def a_model(scale=6.0):
    return oracles.linear_model(scale * np.array([[-0.5, 0.0], [0.5, 0.0]]), scale * np.array([0.25, -0.25]))


@pytest.mark.parametrize("norm", [1, pytest.param(2, marks=pytest.mark.slow), math.inf])
@pytest.mark.slow
def test_ten_clients_of_a_thousand_examples_pay_less_than_a_quarter_for_the_truth(norm):
    clients = world(10, 1000, 0)
    radii = [0.0, 0.1, 0.5, 1.0]
    options = {"radii": radii, "norm": norm, "split": "test", "achieved": False}
    sample, truth = certify(a_model(), clients, **options), certify(a_model(), clients, **options, confidence=0.95)
    for here, elsewhere in zip(sample.rows, truth.rows, strict=True):
        assert here.best < elsewhere.best <= 1.25 * here.best
        assert elsewhere.margin > 0.0
    assert truth.confidence == 0.95
    assert "with probability 0.95" in str(truth)
    assert truth.loss == pytest.approx(sample.loss, rel=1e-14)  # the same sum in another order


def test_the_bound_of_the_loss_is_that_of_its_mean_and_second_moment():
    clients = world(3, 20, 1)
    model = a_model()
    certificates = certify(model, clients, radii=[0.0], split="test", achieved=False, confidence=0.9)
    losses, trained = (
        [theory.plain_losses(model, part.of(client)[0].numpy(), part.of(client)[1].numpy()) for client in range(3)]
        for part in (clients.test, clients.train)
    )
    most = math.log(1.0 + math.exp(3.0))  # s_1 - s_0 = 6 x_0 - 3, at most 3 in either direction
    weights = [1.0 / 3.0] * 3
    bets = moments_of(trained, most).bets(weights, [20] * 3, 0.1)
    upper = moments_of(losses, most).upper_mean(weights, bets, 0.1)
    assert certificates[0].value == pytest.approx(upper, rel=1e-9)
    assert certificates[0].margin == pytest.approx(upper - np.mean(losses), rel=1e-9)


def test_what_cannot_be_said_beyond_the_sample_is_refused():
    clients = world(2, 10, 0)
    with pytest.raises(wafl.PreconditionError, match="use split='test' with a confidence"):
        certify(a_model(), clients, radii=[0.1], confidence=0.95)
    for confidence in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=rf"confidence={confidence} must lie in \(0, 1\)"):
            certify(a_model(), clients, radii=[0.1], split="test", confidence=confidence)
    pairs = [(np.random.default_rng(0).normal(size=(8, 2)), np.arange(8) % 2)] * 2
    free = wafl.Federation.from_arrays(pairs)
    with pytest.raises(wafl.PreconditionError, match="confidence needs bounds of the data"):
        certify(a_model(), free, radii=[0.1], split="test", confidence=0.95)
    targets = wafl.Federation.from_arrays([(x.clip(0, 1), x[:, 0]) for x, _ in pairs], bounds=(0, 1))
    line = oracles.linear_model(np.ones((1, 2)))
    with pytest.raises(wafl.PreconditionError, match="confidence needs cross-entropy"):
        certify(line, targets, radii=[0.1], split="test", confidence=0.95, loss="squared_error")


@pytest.mark.parametrize("size", [50, 200, 1000])
def test_one_clients_errors_cost_at_most_twice_the_margin_of_clopper_and_pearson(size):
    """Clopper and Pearson invert the binomial distribution, which only numbers that are 0 or 1 have."""
    rate, sample = 0.1, Sample([size], [0.1], [0.1], 1.0)
    upper = sample.upper_mean([1.0], sample.bets([1.0], [size], 0.05), 0.05)
    heads = round(rate * size)
    exact = stats.beta.ppf(0.95, heads + 1, size - heads)
    assert rate < exact < upper <= rate + 2.0 * (exact - rate)


def test_each_lane_of_moments_is_cut_at_its_own_most():
    case = a_case("mlr")
    task = make_task(case.model, case.loss)
    x, y = torch.from_numpy(case.x)[None].repeat(2, 1, 1), torch.from_numpy(case.y)[None].repeat(2, 1)
    problem = Problem(task, task.initial()[None].repeat(2, 1))
    move = Moments()(problem, x, y, ObjectiveState({"most": torch.tensor([0.5, 9.0], dtype=torch.float64)}))
    losses = theory.plain_losses(case.model, case.x, case.y)
    np.testing.assert_allclose(move.value.numpy(), [np.minimum(losses, 0.5), np.minimum(losses, 9.0)])
    np.testing.assert_allclose(move.cost.numpy(), move.value.numpy() ** 2)
    numbers = {"most": torch.tensor([0.5, 9.0]).double(), "gamma": torch.full((2,), 1e-6).double()}
    gained = Moments(ErrorSurrogate())(problem, x, y, ObjectiveState(numbers)).value  # moves cost next to nothing
    assert bool((gained[0] == 0.5).all())
    assert bool((gained[1] > 0.99).all())


def test_all_radii_share_the_probability_that_a_bound_is_wrong():
    clients, options = world(3, 20, 1), {"split": "test", "achieved": False}
    one = certify(a_model(), clients, radii=[0.0], confidence=0.95, **options)
    two = certify(a_model(), clients, radii=[0.0, 0.2], confidence=0.9, **options)
    assert two[0].value == pytest.approx(one[0].value, rel=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_the_error_rate_beyond_the_sample_needs_no_bounds(norm):
    """phi_gamma of the error rate is ``max(0, 1 - gamma distance^2)``, here of two classes, in plain numpy."""
    rng = np.random.default_rng(0)
    pairs = [(rng.normal(size=(40, 2)), rng.integers(0, 2, 40), rng.normal(size=(60, 2)), rng.integers(0, 2, 60))] * 2
    clients = wafl.Federation.from_arrays(pairs)
    options = {"radii": [0.0, 0.3], "norm": norm, "split": "test", "metric": "error"}
    certificates = certify(a_model(), clients, **options, confidence=0.9)
    assert all(row.achieved is None for row in certificates.rows)
    x, y = pairs[0][2:]
    ahead = (6.0 * x[:, 0] - 3.0) * np.where(y == 1, 1.0, -1.0)
    distance = np.maximum(ahead, 0.0) / 6.0
    for row in certificates.rows:
        gamma = 1e300 if row.radius == 0 else row.gamma
        phi = np.maximum(0.0, 1.0 - gamma * distance**2)
        bound = row.value - (0.0 if row.radius == 0 else gamma * row.radius**2)
        assert row.margin > 0.0
        assert min(phi.mean() + row.margin, 1.0) == pytest.approx(bound, abs=1e-9)
    assert certificates.loss == pytest.approx((ahead <= 0).mean())
    assert "error rate" in str(certificates)
