"""The mixture of the sources that is nearest to a target."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from wafl.base.checks import check_positive
from wafl.data.federation import Federation
from wafl.weights.transport.clouds import Features, Sampling, read_apart, read_sources_and_target
from wafl.weights.transport.costs import check_size, ground_cost, solve_pair, transport_package
from wafl.weights.transport.cutting_planes import MixtureDistance, nearest_mixture, pick_tolerance
from wafl.weights.transport.distances import Distance, standard_error
from wafl.weights.transport.exchange import MOST_POINTS, Cuts, Exchange, check_exchange, cuts, mixture_from_cuts
from wafl.weights.transport.result import TransportWeights


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
    """``min over the simplex of W_2^2(P_lambda, Q)``, where ``P_lambda = sum_i lambda_i P_i``.

    This is the problem that the paper relaxes to :func:`wafl.weights.nearest`; as it is convex in lambda, it can be
    solved directly.

    ``exchange="cuts"`` is exact without the sources' examples, but no privacy guarantee. The target's examples, at most
    300 of which are drawn, are shown to every source. Round by round, each source sends one mean cost and how many of
    its examples lie nearest to which of the target's, with borders that the coordinator shifts: from this it learns
    their mean and spread, and can find single examples if it chooses the borders to that end. ``distances`` are then
    what the cuts prove, lower bounds. See :mod:`wafl.weights.transport.exchange`.

    Args:
        sources: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        target: an array, a pair, or a federation, whose training examples are pooled.
        sample: how many points to draw from each side that has more; None takes all.
        seed: what the points are drawn from.
        features: a map of examples ``[n, ...] -> [n, k]``, whose results are compared instead.
        label_aware: add to the squared distance of two examples that of the clouds of their labels (OTDD).
        label_cost: kappa, the price of a label in the ball: add ``kappa 1(y != y')``, or ``kappa ||y - y'||^2`` for
            targets of a regression; None compares inputs alone.
        tolerance: stop at a ``gap`` of this times the value; by default 1e-9 for up to a million costs (points of all
            sources times points of the target), and 1e-3 for more; with cuts 1e-6 for up to 100 points of the target.
        exchange: what the sources send: their ``examples``, which are pooled, or only ``cuts``.

    Returns:
        The weights; ``value`` is ``W_2^2(P_lambda, Q)`` of the points that were used, and ``gap`` is a proof: no lambda
        has less than ``value - gap``. ``distances`` are ``W_2^2(P_i, Q)``.

    >>> import numpy as np
    >>> result = mixture([np.zeros((4, 1)), np.full((3, 1), 8.0)], np.array([[0.0], [0.0], [0.0], [9.0]]))
    >>> [round(weight, 9) for weight in result.weights], round(result.value, 9)
    ([0.75, 0.25], 0.25)
    """
    sampling = Sampling(sample, seed, features, label_aware, label_cost)
    check_exchange(exchange, labels=sampling.labels)
    if exchange == "cuts":
        clouds, aim = read_apart(sources, target, sampling, MOST_POINTS)
        return weights_from_cuts(partial(cuts, [cloud.x for cloud in clouds], aim.x), aim.x, tolerance)
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


def weights_from_cuts(sources: Cuts, target: Tensor, tolerance: float | None) -> TransportWeights:
    """The exact weights from what the sources send of themselves; see :func:`mixture_from_cuts`."""
    if tolerance is None:
        tolerance = 1e-6 if len(target) <= 100 else 1e-3
    check_positive("tolerance", tolerance)
    solved = mixture_from_cuts(sources, target, tolerance)
    distances = [Distance(least, math.nan) for least in solved.least_distances]
    return TransportWeights.of("mixture", solved.weights.tolist(), solved.value, distances, solved.gap)
