"""The projection onto the simplex, against a general solver, its optimality condition, and the same without a table."""

from collections import Counter

import pytest
import torch

import wafl
from wafl.base.random import Key, Purpose, uniform
from wafl.weights import project_to_simplex
from wafl.weights.learned import ROW


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([5.0], [1.0]),
        ([-7.0], [1.0]),
        ([0.9, 0.5], [0.7, 0.3]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([10.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([1.0, 1.0, -9.0], [0.5, 0.5, 0.0]),
        ([1e17, 0.0], [1.0, 0.0]),
        ([-1e17, 0.25, 0.25], [0.0, 0.5, 0.5]),
        ([2.0**40 + 0.5, 2.0**40 + 0.25, 2.0**40], [7 / 12, 4 / 12, 1 / 12]),
    ],
)
def test_the_projection_is_the_one_by_hand(values, wanted):
    """These inputs are exact in float64, so the answer must not depend on their size."""
    ours = project_to_simplex(torch.tensor(values, dtype=torch.float64))
    assert ours.tolist() == pytest.approx(wanted, abs=1e-12)


def looking_at_each(values):
    """Michelot's algorithm, which drops what is below the mean until nothing is."""
    values = values - values.max()
    staying = values[values > -1.0]
    while True:
        threshold = float(staying.sum() - 1.0) / len(staying)
        fewer = staying[staying > threshold]
        if len(fewer) == len(staying):
            return (values - threshold).clamp_min(0.0)
        staying = fewer


@pytest.mark.parametrize("count", [40 * ROW, 40 * ROW + 7, ROW + 1])
@pytest.mark.parametrize("lift", [1e-9, 1e-5, 1e-2, 1.0, 1e3])
def test_the_projection_of_many_values_has_the_bits_of_looking_at_each(count, lift):
    """Whether all stay, a few rows do, or what does not fill a row is among the largest."""
    draws = torch.Generator().manual_seed(0)
    weights = torch.full((count,), 1.0 / count, dtype=torch.float64)
    for lifted in ([3, count - 1], [0, 1, ROW, count // 2], [count - 1], range(0, count, 3)):
        climbed = weights.clone()
        climbed[list(lifted)] += lift * torch.rand(len(lifted), dtype=torch.float64, generator=draws)
        weights = project_to_simplex(climbed)
        assert torch.equal(weights, looking_at_each(climbed))


@pytest.mark.parametrize("index", [0, -1])
def test_not_a_number_is_not_passed_over(index):
    values = torch.zeros(40 * ROW + 7, dtype=torch.float64)
    values[index] = torch.nan
    with pytest.raises(ZeroDivisionError):
        project_to_simplex(values)


@pytest.mark.parametrize("count", [1, ROW - 1, ROW, ROW + 1, 7 * ROW, 20 * ROW + 5])
@pytest.mark.parametrize("share", [1.0, 0.02])
def test_clients_are_drawn_by_the_running_sum_of_their_weights(count, share):
    generator = torch.Generator().manual_seed(count)
    weights, kept = (torch.rand(count, generator=generator).double() for _ in range(2))
    weights = weights * (kept < share)
    weights[count // 2] = 1.0
    weights = weights / weights.sum()
    draws = uniform(Key.of(count, 3), Purpose.COHORT, 1000)
    wanted = Counter(min(int((weights.cumsum(0) <= draw).sum()), count - 1) for draw in draws)
    cohort = wafl.weights.snapshot().draw(weights, wafl.weights.Round(3, count, count, 1000, 1))
    assert dict(zip(cohort.clients, cohort.weights.tolist(), strict=True)) == wanted
    assert bool((weights[list(cohort.clients)] > 0).all())
