"""The paper's weights for covering all clients: its two programs over the weights and a barycenter, both trivial."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wafl.base.random import Key, Purpose, permutation
from wafl.data.federation import Federation
from wafl.weights.transport.clouds import Cloud, Features, Sampling, read_clients
from wafl.weights.transport.costs import check_size, ground_cost, network_simplex, transport_package
from wafl.weights.transport.distances import TransportWeights, exact_distance


def barycenter(
    clients: Federation | Sequence[Any],
    *,
    sample: int | None = 200,
    seed: int = 0,
    features: Features | None = None,
) -> TransportWeights:
    """``min over lambda and Q of sum_i lambda_i W_2^2(P_i, Q)``, each in turn, as in the paper's appendix.

    The program has a trivial minimum at every client: ``Q = P_i``, ``lambda = e_i``, value 0. The alternation always
    ends at one: from equal weights, Q is the barycenter of all clients; the best weights for it are a vertex, as they
    solve a linear program; the barycenter of that single client is the client itself. For a ball that holds all
    clients use :func:`wafl.weights.cover`.

    Args:
        clients: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        sample: how many points to draw from each client that has more; None takes all.
        seed: what the points are drawn from.
        features: a map of examples ``[n, ...] -> [n, k]``, whose results are compared instead.

    Returns:
        The client nearest to the barycenter of all, and a ``value`` of 0, which says nothing about the others:
        ``distances``, from ``Q`` to each client, do.

    >>> import numpy as np
    >>> result = barycenter([np.full((3, 1), center) for center in (0.0, 4.0, 5.0)])
    >>> result.weights, result.value, result.distances
    ((0.0, 1.0, 0.0), 0.0, (16.0, 0.0, 1.0))
    """
    transport_package()
    clouds = read_clients(clients, Sampling(sample, seed, features))
    check_size(max(len(cloud) for cloud in clouds) ** 2)
    weights = [1.0 / len(clouds)] * len(clouds)
    while True:
        center = _minimizer(clouds, weights, seed)
        distances = [exact_distance(cloud, center) for cloud in clouds]
        before, closest = weights, min(range(len(distances)), key=lambda i: distances[i].value)
        weights = [float(i == closest) for i in range(len(distances))]
        if weights == before:
            break
    return TransportWeights.of("barycenter", weights, distances[closest].value, distances)


def bilevel(
    clients: Federation | Sequence[Any],
    weights: Sequence[float],
    *,
    sample: int | None = 200,
    seed: int = 0,
    features: Features | None = None,
) -> TransportWeights:
    """``W_2^2(P_lambda, Q)``, where Q is the barycenter: the least ``sum_i lambda_i W_2^2(P_i, Q)`` at these weights.

    The paper's appendix would minimize this over the weights, and relaxes it to :func:`wafl.weights.barycenter`,
    because ``W_2^2(P_lambda, Q) <= sum_i lambda_i W_2^2(P_i, Q)``. The minimum is trivial, too: at ``lambda = e_i``
    both P_lambda and Q are the client i itself, and the value is 0. A mixture of clients that differ is never its own
    barycenter, whose points are means of the clients' points and so spread less: only single clients are minimizers.

    Args:
        clients: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        weights: lambda, one weight per client.
        sample: how many points to draw from each client that has more; None takes all.
        seed: what the points are drawn from.
        features: a map of examples ``[n, ...] -> [n, k]``, whose results are compared instead.

    Returns:
        The weights as they were given, and the ``value``; ``distances`` are ``W_2^2(P_i, Q)``. In more than one
        dimension, POT's barycenter is a local solution.

    >>> import numpy as np
    >>> result = bilevel([np.array([[0.0], [1.0]]), np.array([[4.0], [7.0]])], [0.5, 0.5])
    >>> round(result.value, 9), result.distances  # Q is 2 and 4
    (3.5, (6.5, 6.5))
    """
    transport_package()
    clouds = read_clients(clients, Sampling(sample, seed, features))
    check_size(max(len(cloud) for cloud in clouds) * sum(len(cloud) for cloud in clouds))
    shares = [float(weight) for weight in weights]
    if len(shares) != len(clouds) or not (min(shares) >= 0 and abs(sum(shares) - 1.0) <= 1e-6):
        raise ValueError(f"weights={shares} must be {len(clouds)} numbers of at least 0 that sum to 1, one per client")
    center = _minimizer(clouds, shares, seed)
    distances = [exact_distance(cloud, center) for cloud in clouds]
    masses = torch.cat(
        [torch.full((len(cloud),), share / len(cloud)).double() for cloud, share in zip(clouds, shares, strict=True)]
    )
    mixed, even = Cloud(torch.cat([cloud.x for cloud in clouds]), None, len(masses)), torch.ones(len(center)).double()
    _, value, _, _ = network_simplex(masses / masses.sum(), even / len(center), ground_cost(mixed, center).numpy())
    return TransportWeights.of("bilevel", shares, max(value, 0.0), distances)


def _minimizer(clouds: Sequence[Cloud], weights: Sequence[float], seed: int) -> Cloud:
    """The Q of least ``sum_i lambda_i W_2^2(P_i, Q)``: a single client itself, otherwise POT's local solution."""
    if max(weights) == 1.0:
        return clouds[weights.index(1.0)]
    ot = transport_package()
    pooled = torch.cat([cloud.x for cloud in clouds])
    order = permutation(Key.of(seed, round=3), Purpose.TRANSPORT, torch.tensor(len(pooled)), len(pooled))
    start = pooled[order[: min(len(cloud) for cloud in clouds)]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            points = ot.lp.free_support_barycenter(
                [cloud.x.numpy() for cloud in clouds],
                [ot.unif(len(cloud)) for cloud in clouds],
                start.numpy(),
                weights=np.array(weights),
            )
        except UserWarning as warning:
            raise RuntimeError(f"POT found no barycenter ({warning}): draw fewer points with sample=") from warning
    return Cloud(torch.from_numpy(points), None, len(points))
