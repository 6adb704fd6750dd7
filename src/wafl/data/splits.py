"""Which of each client's own examples are held out for testing."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from wafl.base.random import Key, Purpose, permutation

MOST_DRAWN = 2**20
"""How many random numbers are drawn at a time for the split of many clients."""


def held_out_rows(
    first: int, sizes: Tensor, test_fraction: float, seed: int, purpose: Purpose = Purpose.SPLIT
) -> tuple[Tensor, Tensor]:
    """Which of the rows of consecutive clients are for testing, and how many of each client's: those of split_rows."""
    num_test = _num_test(sizes, test_fraction)
    held = torch.zeros(int(sizes.sum()), dtype=torch.bool)
    begins = sizes.cumsum(0) - sizes
    begin, count = 0 if bool(num_test.any()) else len(sizes), MOST_DRAWN
    while begin < len(sizes):
        count = min(len(sizes) - begin, 2 * count)
        while count > 1 and count * int(sizes[begin : begin + count].max()) > MOST_DRAWN:
            count //= 2
        some = slice(begin, begin + count)
        order = _orders(first + begin, sizes[some], seed, purpose)[:, : int(num_test[some].max())]
        chosen = torch.arange(order.shape[1]) < num_test[some, None]
        held[(begins[some, None] + order)[chosen]] = True
        begin += count
    return held, num_test


def split_rows(
    first: int, sizes: Tensor, test_fraction: float, seed: int, purpose: Purpose = Purpose.SPLIT
) -> Iterator[tuple[Tensor, Tensor]]:
    """Training and test rows of consecutive clients, a random split of each client's own rows, in ascending order."""
    orders, num_test = _orders(first, sizes, seed, purpose), _num_test(sizes, test_fraction)
    for order, size, held_out in zip(orders, sizes.tolist(), num_test.tolist(), strict=True):
        yield order[held_out:size].sort().values, order[:held_out].sort().values


def _num_test(sizes: Tensor, test_fraction: float) -> Tensor:
    return torch.minimum((sizes * test_fraction).round().to(torch.int64), sizes - 1)


def _orders(first: int, sizes: Tensor, seed: int, purpose: Purpose) -> Tensor:
    """A random order of the rows of each of consecutive clients."""
    clients = torch.arange(first, first + len(sizes))
    key = Key(torch.full_like(clients, seed), torch.zeros_like(clients), clients, torch.zeros_like(clients))
    return permutation(key, purpose, sizes, int(sizes.max()))
