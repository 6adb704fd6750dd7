"""The mixture of the clients that is the center of the smallest ball that holds every client."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from wafl.data.federation import Federation
from wafl.weights.transport.clouds import Cloud, Features, Sampling, read_clients
from wafl.weights.transport.costs import Pair, check_size, ground_cost, solve_pair, transport_package
from wafl.weights.transport.cutting_planes import MixtureDistance, nearest_mixture, pick_tolerance
from wafl.weights.transport.distances import Distance, standard_error
from wafl.weights.transport.result import TransportWeights


def cover(
    clients: Federation | Sequence[Any],
    *,
    sample: int | None = 100,
    seed: int = 0,
    features: Features | None = None,
    label_aware: bool = False,
    label_cost: float | None = None,
    tolerance: float | None = None,
    exchange: Literal["examples"] = "examples",
) -> TransportWeights:
    """``min over the simplex of max_j W_2^2(P_lambda, P_j)``: the smallest ball whose center is a mixture.

    The ball of ``radius`` (the root of ``value``) around ``P_lambda`` holds every client and, as W_2^2 is convex, every
    mixture of the clients. All this is about the points that were used, and says nothing about how far these lie from
    the distributions that they were drawn from.

    Args:
        clients: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        sample: how many points to draw from each client that has more; None takes all.
        seed: what the points are drawn from.
        features: a map of examples ``[n, ...] -> [n, k]``, whose results are compared instead.
        label_aware: add to the squared distance of two examples that of the clouds of their labels (OTDD).
        label_cost: kappa, the price of a label in the ball: add ``kappa 1(y != y')``, or ``kappa ||y - y'||^2`` for
            targets of a regression; None compares inputs alone.
        tolerance: stop at a ``gap`` of this times the value; None as in :func:`wafl.weights.mixture`.
        exchange: what the clients send: their ``examples``, which are pooled. There is no other way to cover clients:
            cuts would show each client's examples to all others.

    Returns:
        The weights; ``distances`` are ``W_2^2(P_lambda, P_j)``, and ``standard_errors`` are theirs at these weights.

    >>> import numpy as np
    >>> result = cover([np.full((4, 1), center) for center in (0.0, 2.0, 4.0)])
    >>> result.weights, result.radius
    ((0.0, 1.0, 0.0), 2.0)
    """
    sampling = Sampling(sample, seed, features, label_aware, label_cost)
    if exchange != "examples":
        raise ValueError(
            f"exchange={exchange!r} must be 'examples': clients cannot be covered without pooled examples, as every "
            "client is a target; with one target, mixture and nearest take exchange='cuts'"
        )
    transport_package()
    clouds = read_clients(clients, sampling)
    size = sum(len(cloud) for cloud in clouds) ** 2
    check_size(size)
    tolerance = pick_tolerance(tolerance, size)
    targets = _distances_to_each(clouds)
    solved = nearest_mixture(targets, tolerance)
    errors = (
        standard_error(
            [(weight * f, cloud) for weight, f, cloud in zip(solved.weights, target.potentials(g), clouds, strict=True)]
            + [(g, aim)]
        )
        for target, g, aim in zip(targets, solved.g, clouds, strict=True)
    )
    distances = list(map(Distance, solved.values, errors))
    return TransportWeights.of("cover", solved.weights.tolist(), max(solved.values), distances, solved.gap)


def _distances_to_each(clouds: Sequence[Cloud]) -> list[MixtureDistance]:
    """One function of the weights per client; the two directions of a pair share their plan."""
    count = len(clouds)
    costs: dict[tuple[int, int], Tensor] = {}
    pairs: dict[tuple[int, int], Pair] = {}
    for i in range(count):
        for j in range(i, count):
            costs[i, j] = ground_cost(clouds[i], clouds[j])
            pairs[i, j] = solve_pair(costs[i, j])
            costs[j, i], pairs[j, i] = costs[i, j].T.contiguous(), pairs[i, j].swapped()
    return [
        MixtureDistance([costs[i, j] for i in range(count)], [pairs[i, j] for i in range(count)]) for j in range(count)
    ]
