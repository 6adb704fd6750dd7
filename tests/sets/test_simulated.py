"""Coverage in draws from known populations: each statement is judged on what it describes, sample or distribution."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from scipy.stats import norm

from wafl.sets.search import search
from wafl.sets.target import Target

COVERAGE, CONFIDENCE = 0.8, {9: 0.8, 19: 0.9, 60: 0.9, 200: 0.95}
SIZES = {
    "equal": lambda rng: 20,
    "tiny": lambda rng: int(rng.integers(1, 4)),
    "unequal": lambda rng: int(np.ceil(np.exp(rng.normal(2.0, 1.5)))),
    "large": lambda rng: 200,
}
EFFECTS = {
    "absent": lambda rng: 0.0,
    "normal": lambda rng: rng.normal(),
    "Cauchy": lambda rng: rng.standard_cauchy(),
    "one in ten": lambda rng: 5.0 * (rng.random() < 0.1),
}


@dataclass
class Drawn:
    """A client with an effect of its own, whose scores are normal around it."""

    effect: float
    values: np.ndarray

    @cached_property
    def scores(self):
        return sorted(self.values.tolist())

    @property
    def size(self):
        return len(self.values)

    def above(self, threshold, shift=None):
        return self.size - bisect_right(self.scores, threshold)


def draw(rng, sizes, effect, ties):
    center = EFFECTS[effect](rng)
    values = rng.normal(center, 1.0, SIZES[sizes](rng))
    return Drawn(center, np.round(values, 0 if ties else 12))


def beyond(client, threshold):
    """The probability of a score above the threshold in the client's distribution, without ties."""
    return float(norm.sf(threshold - client.effect))


def check(count, sizes, effect, ties, draws):
    rng = np.random.default_rng([count, len(sizes), len(effect), ties])
    confidence, missed = CONFIDENCE[count], []
    sample, distribution = 0, 0
    options = {"coverage": COVERAGE, "confidence": confidence}
    example = Target(COVERAGE, "example").supported(count).holds(count)
    client = Target(**options).supported(count).holds(count)
    own = Target(**options, own_sampling=True).supported(count).holds(count) if count > 9 else None
    for _ in range(draws):
        *calibration, new = (draw(rng, sizes, effect, ties) for _ in range(count + 1))
        missed.append(new.above(search(calibration, None, example)) / new.size)
        sample += new.above(search(calibration, None, client)) <= (1.0 - COVERAGE) * new.size + 1e-9
        if own is not None and not ties:
            distribution += beyond(new, search(calibration, None, own)) <= 1.0 - COVERAGE
    noise = 4.0 * math.sqrt(confidence * (1.0 - confidence) / draws)
    assert np.mean(missed) <= 1.0 - COVERAGE + 4.0 * np.std(missed) / math.sqrt(draws)
    assert sample / draws >= confidence - noise
    if own is not None and not ties:
        assert distribution / draws >= confidence - noise
    # Clients whose thresholds are all different leave no room beyond one place.
    if not ties and sizes != "tiny":
        assert sample / draws <= confidence + 1.0 / (count + 1) + noise


@pytest.mark.parametrize(
    ("count", "sizes", "effect", "ties"),
    [
        (9, "equal", "normal", False),
        (19, "unequal", "one in ten", False),
        (19, "tiny", "Cauchy", False),
        (19, "equal", "absent", True),
        (19, "large", "normal", False),
    ],
)
def test_coverage_is_not_below_the_promise(count, sizes, effect, ties):
    check(count, sizes, effect, ties, 250)


@pytest.mark.slow
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("sizes", ["equal", "tiny", "unequal"])
@pytest.mark.parametrize("count", [9, 19, 60, 200])
def test_coverage_is_not_below_the_promise_in_4000_draws(count, sizes, effect, ties):
    check(count, sizes, effect, ties, 4000)
