"""Clients that never train: what a model is worth to those who took no part in its training.

Yuan, Morningstar, Ning and Singhal, "What do we mean by generalization in federated learning?", ICLR 2022.
"""

from __future__ import annotations

from numbers import Real

from wafl.base.checks import check_seed
from wafl.base.random import Purpose, choose


def draw_unseen(total: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    """The clients that train and the clients that never do, both in ascending order and at least one each."""
    check_seed(seed)
    if not isinstance(share, Real) or not 0.0 < share < 1.0:
        raise ValueError(f"share={share!r} must lie between 0 and 1: 0.2 holds out a fifth of the clients")
    if total < 2:
        raise ValueError("there is only one client: hold_out needs at least 2, one to train and one that never does")
    unseen = choose(seed, Purpose.UNSEEN, total, min(max(round(share * total), 1), total - 1))
    return sorted(set(range(total)) - set(unseen)), unseen
