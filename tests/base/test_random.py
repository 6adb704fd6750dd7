"""Philox against published answers and big integers; what is drawn from it against statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.oracles import objective as oracles
from tests.oracles import reference
from wafl.base.random import Key, Purpose, bits, choose, normal, permutation, philox, uniform

WORDS = st.integers(0, 2**32 - 1)
KNOWN_ANSWERS = [  # Random123's kat_vectors
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


def run_philox(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    c0, c1, c2, c3, k0, k1 = (torch.tensor(word) for word in counter + key)
    return [int(word) for word in philox((c0, c1, c2, c3), (k0, k1))]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, answer: str):
    assert run_philox(words(counter), words(key)) == list(words(answer))
    assert reference.philox(words(counter), words(key)) == list(words(answer))


@oracles.quick
@given(st.tuples(WORDS, WORDS, WORDS, WORDS), st.sampled_from(Purpose), st.integers(1, 9))
def test_bits_are_the_words_of_successive_blocks(parts: tuple[int, int, int, int], purpose: Purpose, count: int):
    seed, round_, client, step = parts
    blocks = [reference.philox((block, step, round_, client), (seed, purpose)) for block in range(3)]
    assert bits(Key.of(*parts), purpose, count).tolist() == [word for block in blocks for word in block][:count]


def test_a_lane_draws_what_it_would_draw_alone():
    lanes = Key(torch.tensor([3, 3, 8]), torch.tensor([0, 5, 5]), torch.tensor([2, 1, 0]), torch.tensor([0, 0, 7]))
    for draw in (bits, uniform, normal):
        together = draw(lanes, Purpose.START, 11)
        for lane, parts in enumerate([(3, 0, 2, 0), (3, 5, 1, 0), (8, 5, 0, 7)]):
            assert torch.equal(together[lane], draw(Key.of(*parts), Purpose.START, 11))


def test_uniform_is_uniform_and_fits_in_float32():
    draws = uniform(Key.of(17), Purpose.START, 100_000)
    assert float(draws.min()) >= 0.0
    assert float(draws.max()) < 1.0
    assert torch.equal(draws.float().double(), draws)
    assert stats.kstest(draws.numpy(), "uniform").pvalue > 1e-3


def test_normal_is_normal_and_independent():
    draws = normal(Key.of(17), Purpose.START, 100_001)
    assert draws.shape == (100_001,)
    assert bool(torch.isfinite(draws).all())
    assert stats.kstest(draws.numpy(), "norm").pvalue > 1e-3
    assert abs(float(draws.var()) - 1.0) < 4.0 * np.sqrt(2.0 / 100_001)
    assert 3.5 < float(draws.abs().max()) < 6.5
    halves = draws[:50_000].numpy(), draws[50_001:].numpy()
    assert abs(np.corrcoef(*halves)[0, 1]) < 4.0 / np.sqrt(50_000)
    assert abs(np.corrcoef(draws[:-1].numpy(), draws[1:].numpy())[0, 1]) < 4.0 / np.sqrt(100_000)


@oracles.quick
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(0, 3))
def test_permutation_orders_each_lane_whatever_the_padding(seed: int, sizes: list[int], padding: int):
    lanes = torch.arange(len(sizes))
    key = Key(torch.full_like(lanes, seed), torch.zeros_like(lanes), lanes, torch.zeros_like(lanes))
    width = max(sizes) + padding
    orders = permutation(key, Purpose.BATCH, torch.tensor(sizes), width)
    for lane, size in enumerate(sizes):
        order = orders[lane, :size].tolist()
        assert sorted(order) == list(range(size))
        assert order == permutation(Key.of(seed, 0, lane), Purpose.BATCH, torch.tensor(size), size).tolist()


@oracles.quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.data())
def test_a_smaller_choice_is_part_of_a_larger_one(seed: int, total: int, data: st.DataObject):
    more = data.draw(st.integers(0, total))
    fewer = data.draw(st.integers(0, more))
    small, large = (choose(seed, Purpose.ATTACKED, total, count) for count in (fewer, more))
    assert len(small) == fewer
    assert large == sorted(set(large))
    assert set(small) <= set(large) <= set(range(total))
