"""Hold out data for testing: some of each client's examples, or whole clients that never train."""

from collections.abc import Iterator
from numbers import Real

import torch
from torch import Tensor

from wafl.base.checks import check_seed
from wafl.base.random import Key, Purpose, choose, permutation

MOST_DRAWN = 2**20
"""The number of random numbers to draw at a time for the split of many clients."""


def draw_unseen(total: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """Return the clients that train and the clients that never train, both in ascending order and at least one each.

    Clients that never train show a model's value for clients outside the federation: Yuan, Morningstar, Ning and
    Singhal, "What do we mean by generalization in federated learning?", ICLR 2022.
    """
    check_seed(seed)
    if not isinstance(share, Real) or not 0.0 < share < 1.0:
        raise ValueError(f"share={share!r} must lie between 0 and 1: 0.2 holds out a fifth of the clients")
    if total < 2:
        raise ValueError("there is only one client: hold_out needs at least 2, one to train and one that never does")
    unseen = choose(seed, Purpose.UNSEEN, total, min(max(round(share * total), 1), total - 1))
    return sorted(set(range(total)) - set(unseen)), unseen


def split_rows(
    first: int, sizes: Tensor, test_fraction: float, seed: int, purpose: Purpose = Purpose.SPLIT
) -> Iterator[tuple[Tensor, Tensor]]:
    """Split each client's rows at random into training and test rows, both in ascending order."""
    held, _ = held_out_rows(first, sizes, test_fraction, seed, purpose)
    for mask in held.split(sizes.tolist()):
        yield (~mask).nonzero()[:, 0], mask.nonzero()[:, 0]


def held_out_rows(
    first: int, sizes: Tensor, test_fraction: float, seed: int, purpose: Purpose = Purpose.SPLIT
) -> tuple[Tensor, Tensor]:
    """Return a mask of the rows that consecutive clients hold out, and each client's number of held-out rows."""
    num_test = torch.minimum((sizes * test_fraction).round().to(torch.int64), sizes - 1)
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


def _orders(first: int, sizes: Tensor, seed: int, purpose: Purpose) -> Tensor:
    """Return a random order of the rows of each of consecutive clients."""
    clients = torch.arange(first, first + len(sizes))
    key = Key(torch.full_like(clients, seed), torch.zeros_like(clients), clients, torch.zeros_like(clients))
    return permutation(key, purpose, sizes, int(sizes.max()))
