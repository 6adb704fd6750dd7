"""Coverage in draws from known populations: each statement is judged on what it describes, sample or distribution.

Scores of a client are normal around its effect. Thresholds come from formulas in numpy. In every draw, the conditions
of :class:`Target` must hold at each threshold and at no smaller score: so it is the one that :func:`search` returns.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from scipy.stats import binom, norm

from wafl.receipts.reply import upper_mean
from wafl.sets.search import search
from wafl.sets.target import Target
from wafl.theory.population.intervals import Population
from wafl.theory.population.levels import exact

COVERAGE, CONFIDENCE = 0.8, {9: 0.8, 19: 0.9, 60: 0.9, 200: 0.95}
SIZES = {
    "equal": lambda rng, count: np.full(count, 50),
    "tiny": lambda rng, count: rng.integers(1, 4, count),
    "unequal": lambda rng, count: np.ceil(np.exp(rng.normal(2.0, 1.5, count))).astype(int),
}
EFFECTS = {
    "absent": lambda rng, count: np.zeros(count),
    "normal": lambda rng, count: rng.normal(size=count),
    "Cauchy": lambda rng, count: rng.standard_cauchy(count),
    "one in ten": lambda rng, count: 5.0 * (rng.random(count) < 0.1),
}


@dataclass
class Known:
    """A client whose scores are known."""

    scores: list[float]

    @property
    def size(self):
        return len(self.scores)

    def above(self, threshold, shift=None):
        return sum(score > threshold for score in self.scores)


class World:
    """Clients that are drawn alike; the last is the next one, and the others calibrate."""

    def __init__(self, rng, count, sizes, effect, ties):
        self.sizes, self.effects = SIZES[sizes](rng, count + 1), EFFECTS[effect](rng, count + 1)
        values = rng.normal(np.repeat(self.effects, self.sizes))
        self.values, self.ties = np.round(values) if ties else values, ties
        self.ends = np.cumsum(self.sizes)
        self.new, known = self.values[self.ends[-2] :], self.values[: self.ends[-2]]
        order = known.argsort(kind="stable")
        self.owners, self.ordered = np.repeat(np.arange(count), self.sizes[:-1])[order], known[order]
        self.by_client = self.ordered[self.owners.argsort(kind="stable")]
        self.known = self.sizes[:-1].tolist()

    def example_threshold(self, allowed):
        """The smallest score above which the clients' shares sum to at most `allowed`."""
        shares = (1.0 / self.sizes)[self.owners[::-1]]
        enough = int((np.cumsum(shares) - shares <= allowed + 1e-9).sum())  # from the largest score down
        return float(self.ordered[-enough])

    def client_threshold(self, allowed, rank):
        """The number of this rank among the clients' smallest scores with at most `allowed` scores above."""
        fits = allowed >= 0
        each = np.where(fits, self.by_client[self.ends[:-1] - 1 - np.where(fits, allowed, 0)], math.inf)
        return float(np.sort(each)[rank - 1])

    def is_smallest(self, threshold, holds):
        """Whether the condition holds at this threshold and not at the next smaller score."""
        begin, end = (np.searchsorted(self.ordered, threshold, side) for side in ("left", "right"))

        def is_high_enough(first):
            above = np.bincount(self.owners[first:], minlength=len(self.known))
            return holds(list(zip(self.known, above.tolist(), strict=True)))

        return (threshold == math.inf or is_high_enough(end)) and not (begin and is_high_enough(begin))

    def missed(self, threshold):
        """The share of the next client's scores above the threshold."""
        return float((self.new > threshold).mean())

    def beyond(self, threshold):
        """The probability of a score above the threshold in the next client's distribution."""
        unrounded = math.floor(threshold) + 0.5 if self.ties and threshold < math.inf else threshold
        return float(norm.sf(unrounded - self.effects[-1]))

    def means(self, numbers):
        """The mean of each client's numbers; the last is the next client's."""
        return np.add.reduceat(numbers, np.append(0, self.ends[:-1])) / self.sizes

    def clients(self):
        return [Known(each.tolist()) for each in np.split(self.values, self.ends[:-1])[:-1]]


@cache
def upper(errors, size, failure):
    """The upper bound that a client replies for its error rate."""
    return upper_mean(errors / size, size, 1.0, failure)


@cache
def most(size, failure):
    """The most of the scores that may be above: the largest number whose binomial tail is at most `failure`."""
    return int((binom.cdf(np.arange(size), size, 1.0 - COVERAGE) <= failure * (1.0 - 1e-9)).sum()) - 1


def most_of(sizes, failure):
    return np.array([most(size, failure) for size in sizes.tolist()])


def check(count, sizes, effect, ties, draws):
    rng = np.random.default_rng([count, list(SIZES).index(sizes), list(EFFECTS).index(effect), ties])
    confidence, missed = CONFIDENCE[count], []
    hits = {"sets": 0, "next": 0, "sets of a distribution": 0, "next of a distribution": 0}
    example = Target(COVERAGE, "example").supported(count).holds(count)
    client, own = (
        Target(COVERAGE, confidence=confidence, own_sampling=each).supported(count).holds(count)
        for each in (False, True)
    )
    level = exact(confidence)
    share, failure = Fraction(2, 10), (1.0 - confidence) / 2.0 / count
    for draw in range(draws):
        world = World(rng, count, sizes, effect, ties)
        known = world.sizes[:-1]
        thresholds = [
            world.example_threshold(float(share * (count + 1)) - 1.0),
            world.client_threshold(np.floor(known / 5.0 + 1e-9).astype(int), math.ceil(level * (count + 1))),
            world.client_threshold(most_of(known, failure), math.ceil((1 + level) / 2 * (count + 1))),
        ]
        assert all(map(world.is_smallest, thresholds, (example, client, own)))
        if draw < 3:
            assert thresholds == [search(world.clients(), None, holds) for holds in (example, client, own)]
        missed.append(world.missed(thresholds[0]))
        hits["sets"] += world.missed(thresholds[1]) <= 1.0 - COVERAGE + 1e-9
        *losses, loss = world.means(world.values).tolist()
        hits["next"] += loss <= Population(losses, math.inf, 0.5).next_client(confidence)
        hits["sets of a distribution"] += world.beyond(thresholds[2]) <= 1.0 - COVERAGE
        *errors, _ = np.round(world.means(world.values > 0.5) * world.sizes).astype(int).tolist()
        uppers = [upper(wrong, size, failure) for wrong, size in zip(errors, world.known, strict=True)]
        bound = Population(uppers, math.inf, 0.5).next_client((1 + level) / 2)
        hits["next of a distribution"] += world.beyond(0.5) <= bound
    noise = 4.0 * math.sqrt(confidence * (1.0 - confidence) / draws)
    assert np.mean(missed) <= 1.0 - COVERAGE + 4.0 * np.std(missed) / math.sqrt(draws)
    for name, hit in hits.items():
        assert hit / draws >= confidence - noise, name
    if not ties:  # the next client is equally likely to have each rank
        for name in ("sets", "next"):
            assert hits[name] / draws <= confidence + 1.0 / (count + 1) + noise, name


@pytest.mark.parametrize(
    ("count", "sizes", "effect", "ties"),
    [
        (9, "equal", "normal", False),
        (19, "unequal", "one in ten", False),
        (19, "tiny", "Cauchy", False),
        (19, "equal", "absent", True),
    ],
)
def test_coverage_is_not_below_the_promise(count, sizes, effect, ties):
    check(count, sizes, effect, ties, 250)


@pytest.mark.slow
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count", [9, 19, 60, 200])
def test_coverage_is_not_below_the_promise_in_4000_draws(count, sizes, effect, ties):
    check(count, sizes, effect, ties, 4000)
