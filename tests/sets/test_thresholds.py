"""Thresholds against their definitions, split conformal prediction, and exact binomial limits."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import beta, binom

import wafl
from tests.oracles import conformal
from wafl.sets.answers import Answer, check_grid
from wafl.sets.search import search
from wafl.sets.target import Target
from wafl.sets.thresholds import for_client, for_example, most_above, on_grid


@dataclass
class Drawn:
    """A client whose scores are known."""

    scores: list[float]

    @property
    def size(self):
        return len(self.scores)

    def above(self, threshold, shift=None):
        return sum(score > threshold for score in self.scores)


def draw(rng, count, *, ties):
    sizes = rng.integers(1, 30, count)
    clients = [np.sort(rng.normal(rng.normal(), 1.0, size)) for size in sizes]
    return [Drawn((np.round(scores) if ties else scores).tolist()) for scores in clients]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("count", [1, 4, 9, 19, 40])
def test_thresholds_are_those_of_the_definitions(count, ties):
    rng = np.random.default_rng(count)
    for coverage in ("0.5", "0.8", "0.9", "0.95"):
        clients = draw(rng, count, ties=ties)
        scores = [client.scores for client in clients]
        grid = check_grid(np.linspace(-2.0, 3.0, 16))
        answers = [Answer(client.size, tuple(client.above(t) for t in grid)) for client in clients]
        level = float(coverage)
        if level * (count + 1) <= count:
            holds = for_example(count, level)
            assert search(clients, None, holds) == conformal.example_threshold(scores, coverage)
            assert on_grid(grid, answers, holds) == conformal.example_threshold(scores, coverage, grid)
            assert on_grid(grid, answers, holds) >= search(clients, None, holds)
        for confidence in ("0.5", "0.8", "0.9", "0.95"):
            if float(confidence) * (count + 1) <= count:
                holds = for_client(count, level, float(confidence), own_sampling=False)
                assert search(clients, None, holds) == conformal.client_threshold(scores, coverage, confidence)
                assert on_grid(grid, answers, holds) == conformal.client_threshold(scores, coverage, confidence, grid)


def test_clients_with_one_example_are_split_conformal_prediction():
    rng = np.random.default_rng(0)
    for count, coverage in ((9, "0.9"), (10, "0.9"), (19, "0.95"), (57, "0.8"), (99, "0.99"), (1000, "0.9")):
        scores = rng.normal(size=count).tolist()
        threshold = search([Drawn([score]) for score in scores], None, for_example(count, float(coverage)))
        assert threshold == conformal.split_conformal(scores, coverage)


def test_exact_decimals_accept_nine_clients_and_refuse_eight():
    assert 1.0 / (1.0 - 0.9) > 10.0, "in floats, 9 clients are too few"
    assert for_example(9, 0.9)([(1, 0)] * 9)
    assert Target(0.9, "client", 0.9).supported(9).confidence == 0.9
    with pytest.raises(wafl.PreconditionError, match=r"coverage=0.9 .*: 8 allow at most 8/9 \(88.8%\)"):
        for_example(8, 0.9)
    with pytest.raises(wafl.PreconditionError, match=r"at most 88% confidence \(8/9\)"):
        Target(0.9, "client", 0.9).supported(8)
    with pytest.raises(wafl.PreconditionError, match=r"at most 80% confidence \(8/10\) about the"):
        Target(0.9, "client", 0.9, own_sampling=True).supported(9)


def test_sums_of_fractions_are_exact():
    """(sum_k m_k + 1) / 10 = 0.2 is allowed, and one score of a hundred million more is not."""
    holds = for_example(9, 0.8)
    assert holds([(3, 1), (6, 4), *[(10, 0)] * 7])
    assert not holds([(3, 1), (6, 4), *[(10, 0)] * 6, (10**8, 1)])
    for coverage, most in ((0.9, 1.0), (0.7, 3.0), (0.3, 7.0)):
        holds = for_client(9, coverage, 0.8, own_sampling=False)
        assert holds([(10, most)] * 8)
        assert not holds([(10, most + 2.0**-20)] * 8)


def test_only_the_usual_confidence_falls_back():
    target = Target(0.9).supported(5)
    assert (target.confidence, target.fallen) == (0.833333, True)
    assert target.sentence(5, "").endswith("with 83% confidence, the most that 5 clients support")
    assert not Target(0.9).supported(19).fallen
    assert not Target(0.9, confidence=0.8).supported(5).fallen
    with pytest.raises(wafl.PreconditionError, match="no promise about a distribution"):
        Target(0.9, own_sampling=True).supported(1)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_answer_counts_as_a_client_that_misses_everything(missing):
    rng = np.random.default_rng(missing)
    for count in (20, 39):
        clients = draw(rng, count, ties=False)
        everyone = [client.scores for client in clients] + [[]] * missing
        holds = for_example(len(everyone), 0.75)
        assert search(clients, None, holds) == conformal.example_threshold(everyone, "0.75")
        holds = for_client(len(everyone), 0.75, 0.9, own_sampling=False)
        assert search(clients, None, holds) == conformal.client_threshold(everyone, "0.75", "0.9")
    assert search(draw(rng, 9, ties=False), None, for_client(10, 0.5, 0.8, own_sampling=False)) < math.inf
    assert search(draw(rng, 9, ties=False), None, for_client(11, 0.5, 0.9, own_sampling=False)) == math.inf


def test_binomial_limits_are_clopper_and_pearsons():
    """c of n scores may be above if the upper Clopper-Pearson limit of c of n is at most 1 - coverage."""
    for size in (1, 5, 30, 100, 517):
        for share in (0.05, 0.1, 0.3):
            for failure in (0.05, 1e-3, 1e-6):
                limits = [beta.ppf(1.0 - failure, c + 1, size - c) for c in range(size)]
                allowed = [c for c, limit in enumerate(limits) if limit <= share]
                assert most_above(size, share, failure) == max(allowed, default=-1)
                assert binom.cdf(most_above(size, share, failure), size, share) <= failure


def test_own_sampling_splits_the_failure_over_the_clients():
    clients = [Drawn(list(map(float, range(1000)))) for _ in range(39)]
    threshold = search(clients, None, for_client(39, 0.9, 0.95, own_sampling=True))
    allowed = most_above(1000, 0.1, 0.025 / 39)
    assert threshold == 999.0 - allowed
    assert threshold > search(clients, None, for_client(39, 0.9, 0.95, own_sampling=False))


@pytest.mark.parametrize("grid", [[], [0.0, math.inf], [0.0, 0.0], [1.0, 0.0], [math.nan]])
def test_a_grid_must_rise_and_be_finite(grid):
    with pytest.raises(ValueError, match="grid"):
        check_grid(grid)
