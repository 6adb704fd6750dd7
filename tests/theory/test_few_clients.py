"""What few clients support about the next one: exact levels, coverage in draws from known populations, and files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wafl
from tests.promises.files import forge, publish_next_client, status
from tests.theory.population import MODEL, world
from wafl.base.describe import rounded_up
from wafl.theory.certificates.certify import quantity_of
from wafl.theory.certificates.sampling import Sample
from wafl.theory.population.levels import clients_needed, highest_confidence, is_supported
from wafl.theory.population.next_client import NextClient

COUNTS = (1, 2, 5, 9, 19)


def first_place(count: int, level: Fraction) -> int | None:
    """The smallest place among K + 1 equally likely ones that covers with probability `level`, by counting."""
    return next((index for index in range(1, count + 1) if Fraction(index, count + 1) >= level), None)


@pytest.mark.parametrize("own_sampling", [False, True])
@pytest.mark.parametrize("count", [*COUNTS, 3, 18, 20, 38, 39, 199])
def test_the_highest_confidence_is_the_last_that_has_a_place(count: int, own_sampling: bool) -> None:
    highest = highest_confidence(count, own_sampling=own_sampling)
    for step, good in ((0, True), (1, False)):
        confidence = Fraction(repr(highest)) + Fraction(step, 10**6)
        rank = 1 - (1 - confidence) / 2 if own_sampling else confidence
        assert (first_place(count, rank) is not None) is good
        if confidence > 0:
            assert is_supported(float(confidence), count, own_sampling=own_sampling) is good
    if highest > 0:
        assert clients_needed(highest, own_sampling=own_sampling) <= count
        assert clients_needed(highest + 2e-6, own_sampling=own_sampling) > count


def test_thresholds_are_exact() -> None:
    """In floats 1 / (1 - 0.9) is more than 10, and 9 clients would be too few."""
    assert 1.0 / (1.0 - 0.9) > 10.0
    for confidence, examples, distribution in (
        (0.9, 9, 19),
        (0.95, 19, 39),
        (0.8, 4, 9),
        (0.99, 99, 199),
        (5 / 6, 5, 11),
    ):
        for needed, sampled in ((examples, False), (distribution, True)):
            assert clients_needed(confidence, own_sampling=sampled) == needed
            assert is_supported(confidence, needed, own_sampling=sampled)
            assert not is_supported(confidence, needed - 1, own_sampling=sampled)
    seen = world(3, 8)
    for count in (8, 9):
        bounds = wafl.next_client(MODEL, seen, world(count, 12, seed=1), confidence=0.9)
        if count == 9:
            assert bounds.next(own_sampling=False) == max(bounds.measured)
        else:
            with pytest.raises(ValueError, match=r"at most 88% confidence \(8/9\) .*; 90% takes 9 clients"):
                bounds.next(own_sampling=False)


def coins(heads: Sequence[float], size: int) -> NextClient:
    """Return the answers of clients that each tossed a coin `size` times, with these shares of heads."""
    sample = Sample([size] * len(heads), list(heads), list(heads), 1.0)
    trained = Sample([400], [0.33], [0.33], 1.0)
    names = tuple(map(str, range(len(heads))))
    return NextClient(names, sample, 0.0, trained, 0.0, 2, "", 0.95, True, quantity_of("error"), fallback=True)


def some_clients(count: int, size: int, seed: int = 0) -> NextClient:
    rng = np.random.default_rng(seed)
    return coins((rng.binomial(size, rng.beta(2.0, 4.0, count)) / size).tolist(), size)


@pytest.mark.parametrize("count", COUNTS)
def test_the_next_clients_examples_are_covered_as_often_as_is_said(count: int) -> None:
    """As often, and not more often: a place that is too low or too high is noticed."""
    rng, draws, covered = np.random.default_rng(count), 4000, 0
    level = some_clients(count, 10).next_confidence(own_sampling=False)
    for means in rng.beta(2.0, 4.0, (draws, count + 1)):
        covered += means[-1] <= coins(means[:-1].tolist(), 100).next(own_sampling=False)
    assert level == pytest.approx(count / (count + 1), abs=1e-6)
    assert covered / draws == pytest.approx(level, abs=4.0 * math.sqrt(level * (1.0 - level) / draws))


@pytest.mark.parametrize("size", [4, 40])
@pytest.mark.parametrize("count", COUNTS[1:])
def test_the_next_clients_distribution_is_covered_at_least_as_often_as_is_said(count: int, size: int) -> None:
    """The bound is the largest of the clients' own: the bound of the client with the most heads, in a table."""
    level = some_clients(count, size).next_confidence()
    bounds = np.array([coins([heads / size] * count, size).next() for heads in range(size + 1)])
    assert (np.diff(bounds) >= 0.0).all()
    some = some_clients(count, size)
    assert some.next() == bounds[round(max(some.measured) * size)]
    rng = np.random.default_rng(count)
    shape = 20_000, count + 1
    for population in (rng.beta(2.0, 4.0, shape), rng.choice([0.02, 0.9], shape, p=[0.9, 0.1])):
        most = rng.binomial(size, population[:, :-1]).max(1)
        assert level == pytest.approx((count - 1) / (count + 1), abs=1e-6)
        assert (population[:, -1] <= bounds[most]).mean() >= level


def test_one_client_supports_nothing_about_the_next_ones_distribution() -> None:
    result = some_clients(1, 30)
    assert result.next_confidence(own_sampling=False) == 0.5
    with pytest.raises(wafl.PreconditionError, match="hold out 2 or more, or use own_sampling=False"):
        result.next()


@pytest.mark.parametrize("count", [2, 5, 9, 19, 38])
def test_the_bound_at_the_highest_confidence_is_the_largest_upper_bound(count: int) -> None:
    """Half of delta, 1 / (K + 1), is split between the K clients' own bounds."""
    result = some_clients(count, 50, seed=1)
    level = (1.0 - result.next_confidence()) / 2.0 / count
    assert level == pytest.approx(1.0 / (count + 1) / count, rel=1e-4)
    bets = result.seen.bets([1.0], [50], level)
    upper = [Sample([50], [mean], [mean], 1.0).upper_mean([1.0], bets, level) for mean in result.sample.means]
    assert result.next() == pytest.approx(max(upper), rel=1e-12)


@pytest.mark.parametrize(("count", "own_sampling"), [(19, False), (25, False), (39, True), (60, True)])
def test_clients_that_support_the_usual_confidence_keep_every_bit(count: int, own_sampling: bool) -> None:
    result = some_clients(count, 50, seed=2)
    values = sorted(result.measured)
    probability = 0.95
    if own_sampling:
        delta = (1.0 - 0.95) / 2.0
        values, probability = sorted(result._upper(delta)), 1.0 - delta
    index = math.ceil((count + 1) * probability - 1e-9)
    assert result.next_confidence(own_sampling=own_sampling) == 0.95
    assert result.next(own_sampling=own_sampling) == values[index - 1]
    asked = replace(result, fallback=False)
    assert asked.next(own_sampling=own_sampling) == result.next(own_sampling=own_sampling)
    assert asked.mean() == result.mean()
    assert str(asked) == str(result) or not own_sampling


def test_every_sentence_about_the_next_client_says_what_it_is_about_and_how_sure_it_is() -> None:
    bounds = wafl.next_client(MODEL, world(3, 8), world(5, 60, seed=1), metric="error")
    lines = [line for line in str(bounds).splitlines() if "next client" in line]
    each = bounds.next(), bounds.next(own_sampling=False), bounds.mean()
    distribution, examples, mean = map(rounded_up, each)
    assert lines == [
        f"the next client's certified error rate on its distribution is at most {distribution} with 66% "
        "confidence, the most that 5 clients support",
        f"the next client's certified error rate on its examples is at most {examples} with "
        "83% confidence, the most that 5 clients support",
    ]
    assert f"of all clients is at most {mean} on their distributions, with 95% confidence" in str(bounds)
    assert "the most that" not in str(wafl.next_client(MODEL, world(3, 8), world(39, 8, seed=1), metric="error"))


FILES: list[tuple[int, dict[str, Any], float | None]] = [
    (2, {}, 0.333333),
    (5, {}, 0.666666),
    (5, {"own_sampling": False}, 0.833333),
    (1, {"own_sampling": False}, 0.5),
    (19, {}, 0.9),
    (19, {"own_sampling": False}, None),
    (39, {}, None),
]


@pytest.mark.parametrize(("count", "options", "level"), FILES)
def test_a_file_carries_the_confidence_that_was_used_and_the_checker_proves_it(
    count: int, options: dict[str, Any], level: float | None, tmp_path: Path
) -> None:
    seen, unseen = world(3, 8), world(count, 12, seed=1)
    promise = publish_next_client(MODEL, seen, unseen, metric="error", **options)
    rows = {row.about: row.confidence for row in promise.parts.claim.rows}
    assert promise.parts.claim.confidence == 0.95
    assert rows["next"] == level
    assert rows["mean"] is None, "the mean keeps 95%"
    claimed = wafl.next_client(MODEL, seen, unseen, metric="error")
    assert promise.values["next"] == pytest.approx(claimed.next(**options), rel=0.06)
    assert claimed.next_confidence(**options) == (level or 0.95)
    file = tmp_path / "next.json"
    page = promise.save(file).read_text()
    assert '"confidence": 0.95,' in file.read_text()
    assert file.read_text().count("confidence") == 1 + (level is not None)
    assert (f"with a probability of at least {level}, the most that" in page) is (level is not None)
    what = "distribution" if options.get("own_sampling", True) else "examples"
    assert f"| the next client, on its {what}" in page
    bounds = wafl.verify(file, model=MODEL, data=unseen)
    assert bounds.recomputed
    if level is None:
        return

    def claim_more(content: dict[str, Any]) -> None:
        content["claim"]["rows"][-1]["confidence"] = round(level + 1e-6, 6)

    forge(file, claim_more)
    changed = wafl.verify(file, model=MODEL, data=unseen)
    assert status(changed)["radius 0, next"] == "wrong"
    assert not changed.ok
    forge(file, lambda content: content["claim"]["rows"][-1].update(confidence=0.99))
    with pytest.raises(ValueError, match="the confidence of a row must lie between 0 and the certificate's"):
        wafl.verify(file)


def test_a_file_with_a_confidence_that_clients_do_not_support_is_refused() -> None:
    seen, unseen = world(3, 8), world(5, 12, seed=1)
    with pytest.raises(ValueError, match=r"support at most 66% .* distribution; 95% takes 39 clients"):
        publish_next_client(MODEL, seen, unseen, confidence=0.95)
    with pytest.raises(ValueError, match=r"5 held-out clients support at most 83% .* examples; 90% takes 9 clients"):
        publish_next_client(MODEL, seen, unseen, confidence=0.9, own_sampling=False)
    promise = publish_next_client(MODEL, seen, unseen, confidence=0.83, own_sampling=False)
    assert "next" in promise.values
    assert promise.parts.claim.confidence == 0.83


def test_invited_clients_without_an_answer_count_as_infinity() -> None:
    seen, unseen = world(3, 8), world(39, 12, seed=1)
    invited = [*unseen.names, "silent", "gone"]
    plain = wafl.next_client(MODEL, seen, unseen, metric="error", confidence=0.9)
    bounds = wafl.next_client(MODEL, seen, unseen, metric="error", confidence=0.9, invited=invited)
    assert bounds.missing == ("silent", "gone")
    assert bounds.next(own_sampling=False) == sorted(plain.measured)[math.ceil(Fraction(9, 10) * 42) - 1]
    assert bounds.next(own_sampling=False) >= plain.next(own_sampling=False)
    assert bounds.share(0.7, own_sampling=False) >= plain.share(0.7, own_sampling=False)
    assert bounds.mean() > plain.mean(), "they count as the largest error rate"
    assert str(bounds).splitlines()[-1] == (
        "2 of 41 invited clients gave no finite answer and count as infinity: silent, gone"
    )
    few = wafl.next_client(MODEL, seen, world(5, 12, seed=1), metric="error", invited=[*unseen.names[:5], "silent"])
    assert few.next_confidence(own_sampling=False) == highest_confidence(6, own_sampling=False)
    assert few.next(own_sampling=False) == math.inf
    assert bounds.publish().parts.claim.missing == ("silent", "gone")
    with pytest.raises(ValueError, match="client client 1 was not invited"):
        wafl.next_client(MODEL, seen, unseen, invited=["client 0"])


def test_a_client_whose_number_is_not_finite_counts_as_infinity() -> None:
    seen, unseen = world(3, 8), world(20, 12, seed=1)
    x = unseen.train.raw.clone()
    x[unseen.train.offsets[7]] = math.nan
    broken = replace(unseen, train=replace(unseen.train, raw=x))
    bounds = wafl.next_client(MODEL, seen, broken, confidence=0.8)
    assert bounds.missing == (unseen.names[7],)
    others = [value for index, value in enumerate(wafl.next_client(MODEL, seen, unseen).measured) if index != 7]
    assert bounds.measured == pytest.approx(others, rel=1e-9)
    assert bounds.next(own_sampling=False) == sorted([*bounds.measured, math.inf])[math.ceil(0.8 * 21) - 1]
