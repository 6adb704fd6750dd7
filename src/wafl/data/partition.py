"""Ways to spread a data set over clients: each returns the rows of every client."""

from __future__ import annotations

import torch
from torch import Tensor

from wafl.checks import check_seed
from wafl.random import Key, Purpose, bits, normal, permutation

SIZE_SPREAD = 0.6
"""Standard deviation of the logarithm of a client's share of a label; gives the paper's spread of sizes on MNIST."""


def labels_per_client(y: Tensor, num_clients: int, count: int, num_classes: int, seed: int) -> list[Tensor]:
    """Each client holds ``count`` labels, and of each a random share: disjoint, complete, unequal.

    Labels are dealt so that each is held by equally many clients, up to one.
    """
    check_seed(seed)
    if num_clients < 1:
        raise ValueError(f"num_clients={num_clients} must be at least 1")
    if not 1 <= count <= num_classes:
        raise ValueError(f"labels_per_client={count} must lie in 1 .. {num_classes}, the number of labels")
    if num_clients * count < num_classes:
        raise ValueError(
            f"{num_clients} clients with {count} labels each cannot hold all {num_classes} labels: raise one of the two"
        )
    holders = _deal_labels(num_clients, count, num_classes, seed)
    rows: list[list[Tensor]] = [[] for _ in range(num_clients)]
    for label, owners in enumerate(holders):
        members = (y == label).nonzero()[:, 0]
        if len(members) < len(owners):
            raise ValueError(
                f"label {label} has {len(members)} examples for {len(owners)} clients: use fewer clients or labels"
            )
        order = permutation(Key.of(seed, client=label), Purpose.SIZES, torch.tensor(len(members)), len(members))
        weights = (SIZE_SPREAD * normal(Key.of(seed, round=1, client=label), Purpose.SIZES, len(owners))).exp()
        for owner, part in zip(owners, members[order].split(_sizes(weights, len(members))), strict=True):
            rows[owner].append(part)
    return [torch.cat(parts) for parts in rows]


def _deal_labels(num_clients: int, count: int, num_classes: int, seed: int) -> list[list[int]]:
    """Client by client, the labels held by fewest so far, ties at random; gives each label's clients."""
    held: list[list[int]] = [[] for _ in range(num_classes)]
    for client in range(num_clients):
        ties = bits(Key.of(seed, client=client), Purpose.LABELS, num_classes).tolist()
        for label in sorted(range(num_classes), key=lambda label: (len(held[label]), ties[label]))[:count]:
            held[label].append(client)
    return held


def _sizes(weights: Tensor, total: int) -> list[int]:
    """Whole numbers in proportion to the weights, each at least 1, that sum to ``total``."""
    cuts = (weights.cumsum(0) / weights.sum() * (total - len(weights))).round().to(torch.int64)
    return (cuts.diff(prepend=cuts.new_zeros(1)) + 1).tolist()
