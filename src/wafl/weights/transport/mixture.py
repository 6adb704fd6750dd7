"""Compute client weights by optimal transport: mixtures near a target or the farthest client, and barycenters."""

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wafl.base.random import Key, Purpose, permutation
from wafl.data.federation import Federation
from wafl.weights.transport.clouds import Cloud, Features, Sampling, read_apart, read_clients, read_sources_and_target
from wafl.weights.transport.costs import Pair, check_size, ground_cost, network_simplex, solve_pair, transport_package
from wafl.weights.transport.cutting_planes import MixtureDistance, nearest_mixture, pick_tolerance
from wafl.weights.transport.distances import (
    Distance,
    Method,
    TransportWeights,
    check_method,
    cloud_distance,
    exact_distance,
    standard_error,
)
from wafl.weights.transport.exchange import MOST_POINTS, Exchange, check_exchange, cuts, mixture_from_cuts


def barycenter(
    clients: Federation | Sequence[Any],
    *,
    sample: int | None = 200,
    seed: int = 0,
    features: Features | None = None,
) -> TransportWeights:
    """Alternate ``min over lambda and Q of sum_i lambda_i W_2^2(P_i, Q)``, as in the paper's appendix.

    The program has a trivial minimum at every client: ``Q = P_i``, ``lambda = e_i``, value 0. The alternation always
    ends at one of these: from equal weights, Q is the barycenter of all clients; the best weights for it are a vertex,
    since they solve a linear program; the barycenter of that single client is the client itself. For a ball that
    contains all clients use :func:`wafl.weights.cover`.

    Args:
        clients: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        sample: the number of points to draw from each larger client; None takes all.
        seed: the seed of the draw.
        features: a map of examples ``[n, ...] -> [n, k]``, whose outputs are compared instead.

    Returns:
        The client nearest to the barycenter of all. The ``value`` is 0 and does not describe the other clients;
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
    """Compute ``W_2^2(P_lambda, Q)``, where Q is the barycenter: it minimizes ``sum_i lambda_i W_2^2(P_i, Q)``.

    The paper's appendix would minimize this over the weights, and relaxes it to :func:`wafl.weights.barycenter`,
    because ``W_2^2(P_lambda, Q) <= sum_i lambda_i W_2^2(P_i, Q)``. The minimum is trivial, too: at ``lambda = e_i``
    both P_lambda and Q are client i, and the value is 0. Only single clients are minimizers. A mixture of different
    clients never equals its barycenter, whose points are means of the clients' points and therefore spread less.

    Args:
        clients: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        weights: lambda, one weight per client.
        sample: the number of points to draw from each larger client; None takes all.
        seed: the seed of the draw.
        features: a map of examples ``[n, ...] -> [n, k]``, whose outputs are compared instead.

    Returns:
        The given weights and the ``value``; ``distances`` are ``W_2^2(P_i, Q)``. In more than one
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
    """Return the Q that minimizes ``sum_i lambda_i W_2^2(P_i, Q)``: a single client, or POT's local solution."""
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


def nearest(
    sources: Federation | Sequence[Any],
    target: Any,
    *,
    sample: int | None = 1000,
    seed: int = 0,
    features: Features | None = None,
    label_aware: bool = False,
    label_cost: float | None = None,
    method: Method = "exact",
    regularization: float = 0.05,
    exchange: Exchange = "examples",
) -> TransportWeights:
    """Solve the paper's linear program, ``min over the simplex of sum_i lambda_i W_2^2(P_i, Q)``.

    A linear function on the simplex is minimal at a vertex, so all weight goes to the single nearest source. For the
    nearest mixture, use :func:`wafl.weights.mixture`.

    Drawing points makes distances too large, ``E W_2^2(P_n, Q_n) >= W_2^2(P, Q)``, especially in high dimensions.
    ``standard_errors`` do not include this bias; ``features`` reduce it.

    Args:
        sources: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        target: an array, a pair, or a federation, whose training examples are pooled.
        sample: the number of points to draw from each larger side; None takes all.
        seed: the seed of the draw.
        features: a map of examples ``[n, ...] -> [n, k]``, such as a network's last hidden layer, whose outputs are
            compared instead.
        label_aware: add the squared distance between the clouds of the two labels (OTDD).
        label_cost: kappa, the price of a label in the ball: add ``kappa 1(y != y')``, or ``kappa ||y - y'||^2`` for
            regression targets; None compares only inputs.
        method: ``exact``, or ``entropic`` for the debiased Sinkhorn divergence, which is slower, and less biased by
            drawing if ``regularization`` is large.
        regularization: the regularization of the entropic method, in multiples of the mean cost.
        exchange: what the sources send: their ``examples``, which are pooled, or only ``cuts``, which show the target's
            examples to every source and leak information as in :func:`wafl.weights.mixture`.

    Returns:
        The weights; ``distances`` are ``W_2^2(P_i, Q)``. With cuts, each is computed as a mixture of one source; it is
            at most 1e-6 too large, relatively, or 1e-3 for more than 100 points of the target. Standard errors are then
            unknown.

    >>> import numpy as np
    >>> result = nearest([np.zeros((4, 2)), np.ones((3, 2))], np.full((5, 2), 0.9))
    >>> result.weights, round(result.value, 6)
    ((0.0, 1.0), 0.02)
    """
    sampling = Sampling(sample, seed, features, label_aware, label_cost)
    check_method(method, regularization)
    check_exchange(exchange, labels=sampling.labels, method=method)
    if exchange == "cuts":
        clouds, aim = read_apart(sources, target, sampling, MOST_POINTS)
        alone = [mixture_from_cuts(partial(cuts, [cloud.x], aim.x), aim.x) for cloud in clouds]
        distances = [Distance(each.value, math.nan) for each in alone]
        least = min(each.value - each.gap for each in alone)
    else:
        transport_package()
        clouds, aim = read_sources_and_target(sources, target, sampling)
        check_size(max(len(cloud) for cloud in clouds) * len(aim))
        distances = [cloud_distance(cloud, aim, method, regularization) for cloud in clouds]
        least = min(each.value for each in distances)
    closest = min(range(len(distances)), key=lambda i: distances[i].value)
    value = distances[closest].value
    weights = (float(i == closest) for i in range(len(distances)))
    return TransportWeights.of("nearest", weights, value, distances, value - least, method)


def mixture(
    sources: Federation | Sequence[Any],
    target: Any,
    *,
    sample: int | None = 1000,
    seed: int = 0,
    features: Features | None = None,
    label_aware: bool = False,
    label_cost: float | None = None,
    tolerance: float | None = None,
    exchange: Exchange = "examples",
) -> TransportWeights:
    """Compute ``min over the simplex of W_2^2(P_lambda, Q)``, where ``P_lambda = sum_i lambda_i P_i``.

    This is the problem that the paper relaxes to :func:`wafl.weights.nearest`; it is convex in lambda, so it can be
    solved directly.

    ``exchange="cuts"`` is exact without the sources' examples, but no privacy guarantee. The target's examples, at most
    300 of which are drawn, are shown to every source. In each round, each source sends one mean cost and, for each
    example of the target, the number of its nearest examples; the coordinator shifts the borders between them. From
    this the coordinator learns the examples' mean and spread, and a coordinator that chooses the borders for it can
    find single examples. ``distances`` are then lower bounds, which the cuts prove. See
    :mod:`wafl.weights.transport.exchange`.

    Args:
        sources: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        target: an array, a pair, or a federation, whose training examples are pooled.
        sample: the number of points to draw from each larger side; None takes all.
        seed: the seed of the draw.
        features: a map of examples ``[n, ...] -> [n, k]``, whose outputs are compared instead.
        label_aware: add the squared distance between the clouds of the two labels (OTDD).
        label_cost: kappa, the price of a label in the ball: add ``kappa 1(y != y')``, or ``kappa ||y - y'||^2`` for
            regression targets; None compares only inputs.
        tolerance: stop at a ``gap`` of this times the value; by default 1e-9 for up to a million costs (points of all
            sources times points of the target), and 1e-3 for more; with cuts 1e-6 for up to 100 points of the target.
        exchange: what the sources send: their ``examples``, which are pooled, or only ``cuts``.

    Returns:
        The weights; ``value`` is ``W_2^2(P_lambda, Q)`` of the used points. ``gap`` is a proof: no lambda has a
            distance below ``value - gap``. ``distances`` are ``W_2^2(P_i, Q)``.

    >>> import numpy as np
    >>> result = mixture([np.zeros((4, 1)), np.full((3, 1), 8.0)], np.array([[0.0], [0.0], [0.0], [9.0]]))
    >>> [round(weight, 9) for weight in result.weights], round(result.value, 9)
    ([0.75, 0.25], 0.25)
    """
    sampling = Sampling(sample, seed, features, label_aware, label_cost)
    check_exchange(exchange, labels=sampling.labels)
    if exchange == "cuts":
        clouds, aim = read_apart(sources, target, sampling, MOST_POINTS)
        return mixture_from_cuts(partial(cuts, [cloud.x for cloud in clouds], aim.x), aim.x, tolerance)
    transport_package()
    clouds, aim = read_sources_and_target(sources, target, sampling)
    size = sum(len(cloud) for cloud in clouds) * len(aim)
    check_size(size)
    tolerance = pick_tolerance(tolerance, size)
    costs = [ground_cost(cloud, aim) for cloud in clouds]
    pairs = [solve_pair(cost) for cost in costs]
    solved = nearest_mixture([MixtureDistance(costs, pairs)], tolerance)
    distances = [
        Distance(pair.value, standard_error([(pair.f, cloud), (pair.g, aim)]))
        for pair, cloud in zip(pairs, clouds, strict=True)
    ]
    return TransportWeights.of("mixture", solved.weights.tolist(), solved.values[0], distances, solved.gap)


def cover(
    clients: Federation | Sequence[Any],
    *,
    sample: int | None = 100,
    seed: int = 0,
    features: Features | None = None,
    label_aware: bool = False,
    label_cost: float | None = None,
    tolerance: float | None = None,
) -> TransportWeights:
    """Compute ``min over the simplex of max_j W_2^2(P_lambda, P_j)``: the smallest ball whose center is a mixture.

    The ball of ``radius`` (the root of ``value``) around ``P_lambda`` contains every client and, since W_2^2 is convex,
    every mixture of the clients. This refers to the used points, and not to the distributions from which they were
    drawn.

    Args:
        clients: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        sample: the number of points to draw from each larger client; None takes all.
        seed: the seed of the draw.
        features: a map of examples ``[n, ...] -> [n, k]``, whose outputs are compared instead.
        label_aware: add the squared distance between the clouds of the two labels (OTDD).
        label_cost: kappa, the price of a label in the ball: add ``kappa 1(y != y')``, or ``kappa ||y - y'||^2`` for
            regression targets; None compares only inputs.
        tolerance: stop at a ``gap`` of this times the value; None as in :func:`wafl.weights.mixture`.

    Returns:
        The weights; ``distances`` are ``W_2^2(P_lambda, P_j)``, with their ``standard_errors`` at these weights.

    >>> import numpy as np
    >>> result = cover([np.full((4, 1), center) for center in (0.0, 2.0, 4.0)])
    >>> result.weights, result.radius
    ((0.0, 1.0, 0.0), 2.0)
    """
    sampling = Sampling(sample, seed, features, label_aware, label_cost)
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
    """Return one distance per client, as functions of the weights; both directions of a pair share a plan."""
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
