"""The paper's weights for covering all clients: alternating minimization over the weights and a barycenter."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from wafl.core.extras import require
from wafl.core.random import Key, Purpose, permutation
from wafl.data.federation import Federation
from wafl.weights.transport.clouds import Cloud, Features, Sampling, read_clients
from wafl.weights.transport.costs import check_size
from wafl.weights.transport.distances import exact_distance
from wafl.weights.transport.result import TransportWeights


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
    clouds = read_clients(clients, Sampling(sample, seed, features))
    check_size(max(len(cloud) for cloud in clouds) ** 2)
    weights = [1.0 / len(clouds)] * len(clouds)
    while True:
        center = _minimizer(clouds, weights, seed)
        found = [exact_distance(cloud, center) for cloud in clouds]
        before, closest = weights, min(range(len(found)), key=lambda i: found[i].value)
        weights = [float(i == closest) for i in range(len(found))]
        if weights == before:
            break
    return TransportWeights(
        values=tuple(weights),
        rule="barycenter",
        kind="exact",
        value=found[closest].value,
        gap=0.0,
        distances=tuple(each.value for each in found),
        standard_errors=tuple(each.standard_error for each in found),
    )


def _minimizer(clouds: Sequence[Cloud], weights: Sequence[float], seed: int) -> Cloud:
    """The Q of least ``sum_i lambda_i W_2^2(P_i, Q)``: a single client itself, otherwise POT's local solution."""
    if max(weights) == 1.0:
        return clouds[weights.index(1.0)]
    ot = require("ot", extra="transport", what="optimal transport")
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
