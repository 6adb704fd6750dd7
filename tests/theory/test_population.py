"""What some clients say about all, against exact probabilities, scipy and brute force over distributions."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

import wafl
from wafl.theory.population.intervals import Population


def coverage(count, probability, most, delta, covers):
    """The probability that a statement about coins of ``most`` or 0 holds, by the binomial distribution."""
    return sum(
        stats.binom.pmf(heads, count, probability)
        for heads in range(count + 1)
        if covers(Population([most] * heads + [0.0] * (count - heads), most, delta))
    )


@pytest.mark.parametrize("probability", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("count", [5, 20])
@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_the_mean_of_all_clients_is_covered_as_often_as_is_said(count, probability, delta):
    result = coverage(count, probability, 3.0, delta, lambda some: some.upper_mean() >= 3.0 * probability)
    assert result >= 1.0 - delta


def test_the_width_is_exact_and_below_that_of_dvoretzky_kiefer_and_wolfowitz():
    for count, known in ((10, 0.39), (30, 0.22)):
        dkw = math.sqrt(math.log(1.0 / 0.05) / (2.0 * count))
        assert dkw == pytest.approx(known, abs=0.006)
        width = Population([0.0] * count, 1.0, 0.05).width
        assert 0.9 * dkw < width < dkw
    rng = np.random.default_rng(0)  # uniform clients: how far their distribution function rises above the truth
    ordered = np.sort(rng.uniform(size=(20000, 10)))
    excess = (np.arange(1, 11) / 10 - ordered).max(1)
    assert (excess > Population([0.0] * 10, 1.0, 0.05).width).mean() == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("count", [29, 60])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_share_of_all_clients_is_covered_exactly_as_often_as_the_binomial_says(count, share):
    """With values 1 to K the answer is a place j, which covers unless fewer than j clients lie below the quantile."""
    values = [float(index) for index in range(1, count + 1)]
    index = int(Population(values, count, 0.05).upper_quantile(share))
    assert stats.binom.cdf(index - 1, count, share) >= 0.95
    assert stats.binom.cdf(index - 2, count, share) < 0.95


def test_the_next_client_is_covered_by_its_place_among_all():
    values = [0.3, 0.1, 0.4, 0.2]
    some = Population(values, 1.0, 0.05)
    for probability, expected in ((0.2, 0.1), (0.5, 0.3), (0.8, 0.4)):
        assert some.next_client(probability) == expected
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(20000, 5))
    bound = np.sort(draws[:, :4])[:, 2]  # what next_client(0.6) takes
    assert (draws[:, 4] <= bound).mean() == pytest.approx(0.6, abs=0.01)


def worst_by_brute_force(values, shares, within):
    """The largest mean over distributions on these values that a divergence allows, by a primal solver."""
    count = len(values)
    constraints = [{"type": "eq", "fun": lambda q: q.sum() - 1.0}, {"type": "ineq", "fun": within}]
    best = -math.inf
    for seed in range(3):
        start = np.random.default_rng(seed).dirichlet(np.ones(count)) * 0.1 + 0.9 * shares
        result = optimize.minimize(
            lambda q: -(q @ values), start, bounds=[(1e-12, 1.0)] * count, constraints=constraints, method="SLSQP"
        )
        if result.success:
            best = max(best, float(result.x @ values))
    return best


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # SLSQP of scipy 1.11, which clips them
@pytest.mark.parametrize("radius", [0.05, 0.5])
def test_the_worst_population_near_this_one_is_that_of_a_primal_solver(radius):
    values = [0.2, 0.5, 0.9, 1.4, 0.1, 0.3]
    some = Population(values, 2.0, 0.3)
    shares, places = (np.array(each) for each in zip(*some._worst(), strict=True))
    shares, places = shares[shares > 0], places[shares > 0]
    kl = worst_by_brute_force(places, shares, lambda q: radius + 1e-12 - (q * np.log(q / shares)).sum())
    chi2 = worst_by_brute_force(places, shares, lambda q: radius + 1e-12 - ((q - shares) ** 2 / shares).sum())
    assert some.upper_mean_within_kl(radius) == pytest.approx(kl, rel=2e-4)
    assert some.upper_mean_within_chi2(radius) == pytest.approx(chi2, rel=2e-4)
    assert some.upper_mean_within_kl(radius) >= kl * (1.0 - 1e-6)
    assert some.upper_mean_within_chi2(radius) >= chi2 * (1.0 - 1e-6)


def test_larger_populations_of_clients_never_have_smaller_bounds():
    some = Population([0.2, 0.5, 0.9, 0.4], 1.0, 0.3)
    for bound in (some.upper_mean_within_kl, some.upper_mean_within_chi2):
        results = [bound(radius) for radius in (0.0, 1e-6, 0.01, 0.1, 1.0, 100.0)]
        assert results == sorted(results)
        assert results[0] == pytest.approx(some.upper_mean())
        assert results[1] == pytest.approx(some.upper_mean(), rel=2e-3)
        assert results[-1] == pytest.approx(1.0)


def test_too_few_clients_are_told_how_many_it_takes():
    some = Population([0.1] * 10, 1.0, 0.05)
    with pytest.raises(wafl.PreconditionError, match=r"10 clients are too few for a share of 0\.9.*: it takes 29"):
        some.upper_quantile(0.9)
    assert Population([0.1] * 29, 1.0, 0.05).upper_quantile(0.9) == 0.1
    with pytest.raises(wafl.PreconditionError, match=r"too few for the next one with probability 0\.95: it takes 19"):
        some.next_client(0.95)
    assert Population([0.1] * 19, 1.0, 0.05).next_client(0.95) == 0.1
    for share in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            some.upper_quantile(share)
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            some.next_client(share)
    for radius in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"radius={radius} must be finite"):
            some.upper_mean_within_kl(radius)
