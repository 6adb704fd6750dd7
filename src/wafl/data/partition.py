"""Divide a data set among clients: each function returns the rows of every client."""

import torch
from torch import Tensor

from wafl.base.options import Count, Positive
from wafl.base.random import Key, Purpose, bits, normal, permutation, uniform

SIZE_SPREAD = 0.6
"""The standard deviation of the log of a client's share of a label, as in the paper's sizes on MNIST."""


def labels_per_client(
    y: Tensor, num_clients: int, count: int, num_classes: int, seed: int, sizes: tuple[float, float] | None = None
) -> list[Tensor]:
    """Assign ``count`` labels to each client, and a random share of each: disjoint, complete, unequal.

    Labels are assigned so that the numbers of clients per label differ by at most one. With ``sizes=(mean, std)`` the
    clients' sizes are drawn from a normal distribution instead and divided equally over their labels; the remaining
    data are not used.
    """
    Count().check("num_clients", num_clients)
    if not 1 <= count <= num_classes:
        raise ValueError(f"labels_per_client={count} must lie in 1 .. {num_classes}, the number of labels")
    if num_clients * count < num_classes:
        raise ValueError(
            f"{num_clients} clients with {count} labels each cannot hold all {num_classes} labels: raise one of the two"
        )
    share = num_clients * count // num_classes  # how many clients hold a label, before anything is dealt
    for label in range(num_classes):
        if (size := int((y == label).sum())) < share:
            raise ValueError(f"label {label} has {size} examples for {share} clients: use fewer clients or labels")
    wanted = None if sizes is None else _draw_sizes(num_clients, *sizes, seed)
    rows: list[list[Tensor]] = [[] for _ in range(num_clients)]
    for label, owners in enumerate(_deal_labels(num_clients, count, num_classes, seed)):
        members = _shuffled((y == label).nonzero()[:, 0], seed, label)
        if len(members) < len(owners):
            raise ValueError(
                f"label {label} has {len(members)} examples for {len(owners)} clients: use fewer clients or labels"
            )
        if wanted is None:
            weights = (SIZE_SPREAD * normal(Key.of(seed, round=1, client=label), Purpose.SIZES, len(owners))).exp()
            taken = _sizes(weights, len(members))
        else:
            taken = [max(1, round(wanted[owner] / count)) for owner in owners]
            if sum(taken) > 1.5 * len(members):
                raise ValueError(
                    f"sizes={sizes} asks for {sum(taken)} examples of label {label}, which has {len(members)}: lower it"
                )
            if sum(taken) > len(members):  # slightly too many in total: every client that holds the label gets less
                taken = _sizes(torch.tensor([wanted[owner] for owner in owners]), len(members))
        for owner, chosen in zip(owners, members[: sum(taken)].split(taken), strict=True):
            rows[owner].append(chosen)
    return [torch.cat(chosen) for chosen in rows]


def dirichlet(y: Tensor, num_clients: int, alpha: float, num_classes: int, seed: int) -> list[Tensor]:
    """Divide each label among the clients in Dirichlet shares; an empty client gets one of the largest's examples."""
    Count().check("num_clients", num_clients)
    Positive().check("dirichlet", alpha)
    if len(y) < num_clients:
        raise ValueError(f"{len(y)} examples for {num_clients} clients: use fewer clients")
    rows: list[list[Tensor]] = [[] for _ in range(num_clients)]
    for label in range(num_classes):
        members = _shuffled((y == label).nonzero()[:, 0], seed, label)
        shares = _gamma(alpha, num_clients, seed, label)
        cuts = (shares.cumsum(0) / shares.sum() * len(members)).round().to(torch.int64)
        for client, chosen in enumerate(members.split(cuts.diff(prepend=cuts.new_zeros(1)).tolist())):
            rows[client].append(chosen)
    held = [torch.cat(chosen) for chosen in rows]
    for client in range(num_clients):
        if len(held[client]) == 0:
            richest = max(range(num_clients), key=lambda other: len(held[other]))
            held[client], held[richest] = held[richest][:1], held[richest][1:]
    return held


def iid(total: int, num_clients: int, seed: int) -> list[Tensor]:
    """Return random parts of equal size, up to one example."""
    Count().check("num_clients", num_clients)
    if total < num_clients:
        raise ValueError(f"{total} examples for {num_clients} clients: use fewer clients")
    return list(_shuffled(torch.arange(total), seed, 0).tensor_split(num_clients))


def _shuffled(rows: Tensor, seed: int, which: int) -> Tensor:
    return rows[permutation(Key.of(seed, client=which), Purpose.SIZES, torch.tensor(len(rows)), len(rows))]


def _draw_sizes(num_clients: int, mean: float, std: float, seed: int) -> list[float]:
    """Return normal draws, scaled to exactly this mean and spread, and at least a tenth of the mean."""
    Positive().check("mean size", mean)
    if not std >= 0:
        raise ValueError(f"the standard deviation of the sizes, {std}, must be at least 0")
    draws = normal(Key.of(seed, round=2), Purpose.SIZES, num_clients)
    draws = (draws - draws.mean()) / draws.std(correction=0).clamp_min(1e-12)
    return (mean + std * draws).clamp_min(mean / 10.0).tolist()


def _gamma(alpha: float, count: int, seed: int, label: int) -> Tensor:
    """Draw from Gamma(alpha, 1) by inverting the distribution function; normalized, they are a Dirichlet draw."""
    from scipy.special import gammaincinv

    u = uniform(Key.of(seed, round=3, client=label), Purpose.SIZES, count).clamp_min(2.0**-25)
    return torch.from_numpy(gammaincinv(alpha, u.numpy())).clamp_min(1e-300)


def _deal_labels(num_clients: int, count: int, num_classes: int, seed: int) -> list[list[int]]:
    """Assign to each client in turn the labels with the fewest clients so far, ties at random.

    Returns each label's clients.
    """
    held: list[list[int]] = [[] for _ in range(num_classes)]
    for client in range(num_clients):
        ties = bits(Key.of(seed, client=client), Purpose.LABELS, num_classes).tolist()
        for label in sorted(range(num_classes), key=lambda label: (len(held[label]), ties[label]))[:count]:
            held[label].append(client)
    return held


def _sizes(weights: Tensor, total: int) -> list[int]:
    """Return whole numbers proportional to the weights, each at least 1, that sum to ``total``."""
    cuts = (weights.cumsum(0) / weights.sum() * (total - len(weights))).round().to(torch.int64)
    return (cuts.diff(prepend=cuts.new_zeros(1)) + 1).tolist()
