"""The first of a random order: against unbounded integers, against statistics, and at a cost that does not grow."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import objective as oracles
from tests.oracles import reference
from wafl.base.random import Purpose
from wafl.parts import feistel
from wafl.parts.feistel import first

TOTALS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 31, 32, 33, 97, 100, 127, 128, 129, 255, 256, 257, 1000, 1021]


@pytest.mark.parametrize("total", TOTALS)
def test_the_whole_order_holds_everyone_once(total: int):
    for round_ in range(3):
        assert sorted(first(7, Purpose.COHORT, total, total, round_)) == list(range(total))


@oracles.quick
@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31), st.integers(1, 400), st.data())
def test_the_draw_is_that_of_unbounded_integers(seed: int, round_: int, total: int, data: st.DataObject):
    count = data.draw(st.integers(0, min(total, 20)))
    for purpose in (Purpose.COHORT, Purpose.LOSS_COHORT):
        wanted = reference.choose(seed, purpose, round_, total, count)
        assert sorted(first(seed, purpose, total, count, round_)) == wanted


@pytest.mark.parametrize("total", [2**16, 2**16 + 1, 10**6, 10**9, 2**40 + 1])
def test_the_draw_from_very_many_is_that_of_unbounded_integers(total: int):
    """Above 65536 the amounts are no longer drawn all at once."""
    wanted = reference.choose(3, Purpose.COHORT, 5, total, 12)
    assert sorted(first(3, Purpose.COHORT, total, 12, 5)) == wanted


@oracles.quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.data())
def test_fewer_are_the_beginning_of_more(seed: int, total: int, data: st.DataObject):
    more = data.draw(st.integers(0, total))
    fewer = data.draw(st.integers(0, more))
    assert first(seed, Purpose.COHORT, total, more)[:fewer] == first(seed, Purpose.COHORT, total, fewer)


def test_what_is_drawn_of_few_is_nearly_uniform_over_all_keys():
    """Exactly, over all functions that the turns could draw: total variation as the comment on TURNS states it."""
    worst = 0.0
    for total in range(2, 7):
        chances = chances_of_all_orders(total)
        for count in range(1, total):
            drawn: dict[frozenset[int], float] = {}
            for order, chance in chances.items():
                chosen = frozenset(order[:count])
                drawn[chosen] = drawn.get(chosen, 0.0) + chance
            each = 1 / math.comb(total, count)
            missing = math.comb(total, count) - len(drawn)
            worst = max(worst, (sum(abs(chance - each) for chance in drawn.values()) + missing * each) / 2)
    assert worst < 5e-4


def chances_of_all_orders(total: int) -> dict[tuple[int, ...], float]:
    """The chance of each order of ``0 .. total-1`` after all turns, if every amount is uniform and independent."""
    rows = math.ceil(math.sqrt(total))
    columns = math.ceil(total / rows)
    grid = [divmod(position, columns) for position in range(rows * columns)]
    downs = [
        tuple((row + move[column]) % rows * columns + column for row, column in grid)
        for move in itertools.product(range(rows), repeat=columns)
    ]
    along = [
        tuple(row * columns + (column + move[row]) % columns for row, column in grid)
        for move in itertools.product(range(columns), repeat=rows)
    ]
    chances = {tuple(range(len(grid))): 1.0}
    for turn in range(feistel.TURNS):
        turns, after = along if turn % 2 else downs, dict[tuple[int, ...], float]()
        for order, chance in chances.items():
            for moved in turns:
                image = tuple(moved[position] for position in order)
                after[image] = after.get(image, 0.0) + chance / len(turns)
        chances = after
    walked: dict[tuple[int, ...], float] = {}
    for order, chance in chances.items():
        positions: list[int] = []
        for position in order[:total]:
            while position >= total:
                position = order[position]
            positions.append(position)
        walked[tuple(positions)] = walked.get(tuple(positions), 0.0) + chance
    return walked
