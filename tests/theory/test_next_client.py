"""What held-out clients say about the next: plain recomputation, moved populations, and draws from a known one."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from torch import nn

import wafl
from tests.oracles import theory
from tests.theory.population import MODEL, world
from wafl.base.describe import rounded_up
from wafl.theory import certify
from wafl.theory.certificates.certify import quantity_of
from wafl.theory.certificates.sampling import Sample
from wafl.theory.population.next_client import NextClient


def test_all_examples_of_a_held_out_client_count():
    seen, unseen = world(3, 8), world(4, 12, seed=1)
    bounds = wafl.next_client(MODEL, seen, unseen)
    for client, value in enumerate(bounds.measured):
        x, y = (np.concatenate(each) for each in zip(unseen.train.of(client), unseen.test.of(client), strict=True))
        assert value == pytest.approx(theory.plain_losses(MODEL, x, y).mean(), rel=1e-9)
    assert bounds.sample.sizes == [12, 12, 12, 12]


def test_a_radius_costs_gamma_times_its_square_or_the_slope_times_the_radius():
    seen, unseen = world(3, 8), world(4, 12, seed=1)
    for metric in ("loss", "error"):
        (row,) = (chosen := certify(MODEL, seen, radii=[0.2], metric=metric, achieved=False)).rows
        bounds = wafl.next_client(MODEL, seen, unseen, radius=0.2, metric=metric)
        assert bounds.offset == pytest.approx(row.gamma * 0.04, rel=1e-9)
        if metric == "loss":  # as if the slope's bound were the smaller one
            by_slope = chosen.quantity.inquiry(chosen, replace(row, simple=0.0))
            assert by_slope.offset == pytest.approx(math.hypot(8.0, 0.5) * 0.2, rel=1e-9)


def worst_error(x, y, radius):
    """By moving the examples that are nearest to the line, each just onto it, while the budget lasts."""
    margin = (2 * y - 1) * (8.0 * x[:, 0] - 0.5 * x[:, 1] - 4.0)  # of the outputs of MODEL
    costs = np.sort((np.maximum(margin, 0.0) / math.hypot(8.0, 0.5)) ** 2)
    spent, budget, moved = 0.0, radius**2 * len(x), 0.0
    for cost in costs:
        if spent + cost > budget:
            return (moved + (budget - spent) / cost) / len(x)  # a part of this one
        spent, moved = spent + cost, moved + 1.0
    return 1.0


@pytest.mark.filterwarnings("ignore::wafl.UnitWarning")
@pytest.mark.parametrize("bounds", [(0.0, 1.0), None])
def test_certified_error_rates_are_never_below_the_worst_and_need_no_bounds(bounds):
    seen, unseen = world(6, 40, bounds=bounds), world(12, 40, seed=1, bounds=bounds)
    for radius in (0.0, 0.03, 0.1, 5.0):
        result = wafl.next_client(MODEL, seen, unseen, radius=radius, metric="error")
        for client, value in enumerate(result.measured):
            x, y = (np.concatenate(each) for each in zip(unseen.train.of(client), unseen.test.of(client), strict=True))
            worst = worst_error(x.astype(float), y, radius)
            assert value == pytest.approx(worst, abs=1e-9) if radius in (0.0, 5.0) else worst - 1e-9 <= value <= 1.0
        assert max(result.measured) <= result.share(0.7) <= 1.0
        assert np.mean(result.measured) <= result.mean() <= 1.0
    assert "error rate" in str(result)


def moved_population(rng, clients, client_radius, radius):
    """Whole clients moved by ``client_radius`` in the root mean square, and then each one's examples by ``radius``."""
    x = [part.copy() for part in clients]
    whole = rng.normal(size=(len(x), 2))
    whole *= client_radius / math.sqrt((whole**2).sum(1).mean())
    for index, part in enumerate(x):
        step = rng.normal(size=part.shape)
        step *= radius / math.sqrt((step**2).sum(1).mean())
        x[index] = part + whole[index] + step
    return x


def test_no_moved_population_of_moved_clients_has_a_larger_mean_than_the_mixture_at_the_sum_of_the_radii():
    clients = world(6, 20)
    examples, labels = zip(*(clients.train.of(client) for client in range(6)), strict=True)
    x, y = [each.numpy().astype(float) for each in examples], [each.numpy() for each in labels]
    uniform = wafl.weights.uniform()
    rng = np.random.default_rng(0)
    for client_radius, radius in ((0.1, 0.1), (0.3, 0.05), (0.0, 0.4)):
        bound = certify(MODEL, clients, radii=[client_radius + radius], client_weights=uniform, achieved=False)[0].best
        steepest = -np.sign(4.0)  # along the first coordinate, away from each label
        worst = [each + np.outer(np.where(label == 1, 1.0, -1.0), [steepest, 0.0]) * (client_radius + radius)
                 for each, label in zip(x, y, strict=True)]  # fmt: skip
        for moved in (*(moved_population(rng, x, client_radius, radius) for _ in range(20)), worst):
            means = [theory.plain_losses(MODEL, *each).mean() for each in zip(moved, y, strict=True)]
            assert np.mean(means) <= bound
    bounds = wafl.next_client(MODEL, clients, world(6, 20, seed=2), radius=0.1, population_radius=0.2)
    same = wafl.next_client(MODEL, clients, world(6, 20, seed=2), radius=0.3)
    assert bounds.measured == pytest.approx(same.measured)


def test_half_of_the_probability_is_for_the_clients_own_bounds_and_half_for_the_population():
    means = np.linspace(0.05, 0.4, 60).tolist()
    coins, trained = Sample([200] * 60, means, means, 1.0), Sample([200], [0.2], [0.2], 1.0)
    result = NextClient(tuple(map(str, range(60))), coins, 0.1, trained, 0.0, 2, "", 0.9, True, quantity_of("loss"))
    level = 0.05 / 60
    bets = trained.bets([1.0], [200], level)
    upper = [0.1 + Sample([200], [mean], [mean], 1.0).upper_mean([1.0], bets, level) for mean in means]
    index = next(index for index in range(1, 61) if stats.binom.cdf(index - 1, 60, 0.8) >= 0.95)
    assert result.share(0.8) == pytest.approx(upper[index - 1], rel=1e-9)
    assert result.next() == pytest.approx(upper[math.ceil(0.95 * 61) - 1], rel=1e-9)


def test_what_nothing_can_be_said_about_is_refused_with_a_remedy():
    seen, unseen = world(3, 8), world(4, 12, seed=1)
    result = wafl.next_client(MODEL, seen, unseen)
    with pytest.raises(wafl.PreconditionError, match=r"4 clients are too few for a share of 0\.9"):
        result.share(0.9)
    asked = wafl.next_client(MODEL, seen, unseen, confidence=0.95)
    with pytest.raises(ValueError, match=r"support at most 60% .* distribution; 95% takes 39 clients"):
        asked.next()
    with pytest.raises(ValueError, match=r"4 held-out clients support at most 80% .* examples; 95% takes 19 clients"):
        asked.next(own_sampling=False)
    assert "of at least" not in str(asked)
    twenty = wafl.next_client(MODEL, seen, world(20, 12, seed=1))
    line = f"the certified expected loss of at least 83% of all clients is at most {rounded_up(twenty.share(0.83))}"
    assert line in str(twenty)
    assert "too few" not in str(twenty)
    fewer = replace(
        twenty.sample, **{name: getattr(twenty.sample, name)[:-1] for name in ("sizes", "means", "seconds")}
    )
    silent = replace(twenty, names=twenty.names[:-1], missing=twenty.names[-1:], sample=fewer)
    assert "of at least 83% of all clients is at most inf" in str(silent), "the share does not depend on who answered"
    with pytest.raises(wafl.PreconditionError):
        twenty.share(0.84)
    assert "on its distribution: 4 held-out clients support at most 60% confidence" in str(asked)
    assert asked.mean() == result.mean()
    assert f"the mean certified expected loss of all clients is at most {rounded_up(result.mean())}" in str(result)
    free = wafl.next_client(MODEL, world(3, 8, bounds=None), world(40, 12, seed=1, bounds=None))
    with pytest.raises(wafl.PreconditionError, match="the mean over all clients needs bounds of the data"):
        free.mean()
    with pytest.raises(wafl.PreconditionError, match=r"own sampling error needs bounds.*own_sampling=False"):
        free.share(0.5)
    assert free.share(0.9, own_sampling=False) == pytest.approx(sorted(free.measured)[-1])
    assert free.next(own_sampling=False) == pytest.approx(sorted(free.measured)[-2])
    with pytest.raises(ValueError, match="give kl or chi2, not both"):
        result.mean(kl=0.1, chi2=0.1)
    with pytest.raises(ValueError, match=r"confidence=2 must lie in \(0, 1\)"):
        wafl.next_client(MODEL, seen, unseen, confidence=2)
    with pytest.raises(ValueError, match=r"radius=-1\.0 must be 0 or lie in"):
        wafl.next_client(MODEL, seen, unseen, radius=-1.0)
    other = wafl.Federation.from_arrays([(np.ones((4, 3)), np.arange(4) % 2)])
    with pytest.raises(ValueError, match="hold out clients of the same federation"):
        wafl.next_client(MODEL, seen, other)


def test_clients_that_trained_do_not_stand_for_a_new_one():
    clients = world(6, 8)
    seen, unseen = clients.hold_out(0.5)
    for whole in (unseen, clients):
        with pytest.raises(ValueError, match=r"cannot stand for a new client.*examples of client \d among the clients"):
            wafl.next_client(MODEL, clients, whole)
    assert len(wafl.next_client(MODEL, seen, unseen).names) == 3


@pytest.mark.parametrize(("radius", "proven"), [(0.0, True), (0.5, False)])
def test_a_network_of_unknown_layers_gets_an_estimate_unless_nothing_moves(radius, proven):
    model = nn.Sequential(nn.Linear(2, 4), nn.ELU(), nn.Linear(4, 2))
    seen, unseen = world(3, 8, bounds=None), world(4, 12, seed=1, bounds=None)
    result = wafl.next_client(model, seen, unseen, radius=radius)
    assert result.proven is proven
    assert str(result).startswith("Not proven: this model has no proof") is not proven
    assert ("certified" in str(result)) is proven
    assert ("estimated expected loss" in str(result)) is not proven
    assert wafl.next_client(MODEL, seen, unseen, radius=radius).proven
