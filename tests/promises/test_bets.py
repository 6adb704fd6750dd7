"""The checker's own bounds on means, against exact arithmetic, every pair of means of a grid, and draws."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

import wafl
from tests.oracles import betting
from tests.promises.files import a_bounded_case, forge, publish
from wafl.promises.bets import STAKES, paid, upper_mean

WEIGHTS, MOST = (0.3, 0.7), 2.0


def drawn(sizes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [MOST * rng.beta(1.0 + index, 4.0, size) for index, size in enumerate(sizes)]


def pays(xs: list[np.ndarray], bets: list[float]) -> list[list[float]]:
    return [
        [float(paid(torch.from_numpy(x), bet, part).mean()) for x, bet in zip(xs, bets, strict=True)]
        for _, part in STAKES
    ]


def bound(xs: list[np.ndarray], bets: list[float], delta: float = 0.1) -> float:
    return upper_mean(WEIGHTS, [len(x) for x in xs], bets, pays(xs, bets), MOST, delta)


@pytest.mark.parametrize("bets", [[0.1, 0.1], [0.3, 0.05], [0.45, 0.4]])
def test_it_is_the_largest_mean_that_no_capital_refutes(bets: list[float]) -> None:
    xs, steps = drawn((12, 20)), 120
    grid = betting.upper_mixture(xs, WEIGHTS, MOST, bets, 0.1, steps)
    assert grid <= bound(xs, bets)
    if bets != [0.3, 0.05]:  # of such, the least product is where a mean is above the largest number
        assert bound(xs, bets) <= grid + 2.0 * MOST / steps


def exact_capital(xs: list[np.ndarray], bets: list[float], mean: float) -> mpmath.mpf:
    """The least product of the clients' capitals over means with this mixture, with 50 digits."""
    count, total = sum(map(len, xs)), mpmath.mpf(0)
    for share, part in betting.HEDGE:
        b = [mpmath.mpf(part) * mpmath.mpf(bet) for bet in bets]
        weights = [mpmath.mpf(weight) for weight in WEIGHTS]
        left = mpmath.fsum(w / each for w, each in zip(weights, b, strict=True)) - mpmath.mpf(mean)
        log = -count * mpmath.log(left / count)
        for x, weight, each in zip(xs, weights, b, strict=True):
            log += len(x) * mpmath.log(weight / (len(x) * each))
            log += mpmath.fsum(mpmath.log(1 - each * mpmath.mpf(float(value))) for value in x)
        total += mpmath.mpf(share) * mpmath.exp(log)
    return total


@pytest.mark.parametrize("bets", [[0.01, 0.02], [0.2, 0.1], [0.49999, 0.4999999]])
@pytest.mark.parametrize("delta", [0.5, 1e-3, 1e-9])
def test_the_capital_is_large_enough_in_exact_arithmetic(bets: list[float], delta: float) -> None:
    with mpmath.workdps(50):
        xs = drawn((300, 500))
        result = bound(xs, bets, delta)
        if result < MOST:
            assert exact_capital(xs, bets, result) >= 1 / mpmath.mpf(delta)
            assert exact_capital(xs, bets, result - 1e-6) < 1 / mpmath.mpf(delta)
        else:
            assert exact_capital(xs, bets, MOST * (1.0 - 1e-9)) < 1 / mpmath.mpf(delta)


@pytest.mark.parametrize("bets", [[0.5, 0.1], [0.1, 7.0], [0.0, 0.1], [1e-320, 0.1]])
def test_bets_that_may_lose_everything_or_nothing_prove_nothing(bets: list[float]) -> None:
    xs = drawn((12, 20))
    assert MOST <= upper_mean(WEIGHTS, [12, 20], bets, pays(xs, [0.1, 0.1]), MOST, 0.1) <= MOST * (1.0 + 1e-12)


def test_what_is_paid_is_rounded_upwards() -> None:
    values = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with mpmath.workdps(50):
        for bet in (1e-9, 0.3, 0.999999):
            for value, result in zip(values.tolist(), paid(values, bet, 0.25).tolist(), strict=True):
                exact = -mpmath.log(1 - mpmath.mpf(0.25) * mpmath.mpf(bet) * mpmath.mpf(value))
                assert exact <= result <= exact * (1 + 1e-13)
    assert not bool((paid(torch.ones(1, dtype=torch.float64), 1.0, 1.0) < math.inf).any())


def test_the_truth_is_covered() -> None:
    sizes, bets = (30, 40), [0.2, 0.3]
    truth = sum(w * MOST * (1.0 + index) / (5.0 + index) for index, w in enumerate(WEIGHTS))
    covered = sum(truth <= bound(drawn(sizes, seed), bets, 0.2) for seed in range(300))
    assert covered >= stats.binom.ppf(0.01, 300, 0.8)


@pytest.mark.parametrize("metric", ["loss", "error"])
def test_what_is_published_with_a_confidence_is_no_more_than_a_search_certifies(metric: str) -> None:
    """Clients publish what they pay, and send moments to the search, which allow for more."""
    model, clients = a_bounded_case()
    options = {"radii": [0.0, 0.05, 0.2], "split": "test", "confidence": 0.9, "metric": metric}
    promise = publish(model, clients, **options)
    for value, row in zip(
        promise.values.values(), wafl.certify(model, clients, achieved=False, **options), strict=True
    ):
        assert value <= row.value * 1.01


@pytest.mark.parametrize("forgery", ["bolder", "paid less", "more sure"])
def test_bets_cannot_be_forged(tmp_path, forgery: str) -> None:
    model, clients = a_bounded_case()
    file = tmp_path / "certificate.json"
    publish(model, clients, radii=[0.1], split="test", confidence=0.9).save(file)
    assert wafl.verify(file, model=model, data=clients).recomputed

    def change(content) -> None:
        draws = content["witnesses"][0]["draws"]
        if forgery == "bolder":
            draws["bets"] = [1.05 * bet for bet in draws["bets"]]
        elif forgery == "paid less":
            draws["paid"][0][1] *= 1.0 - 1e-6
        else:
            content["claim"]["confidence"] = 0.95

    forge(file, change)
    checked = wafl.verify(file, model=model, data=clients)
    assert (checked.ok, checked.recomputed) == (False, False)
    alone = wafl.verify(file, model=model, data=clients.of_clients([1])).clients
    assert alone["client 0"].status == "attested"
    assert (alone["client 1"].status == "wrong") == (forgery != "more sure"), "a client checks its own line"
