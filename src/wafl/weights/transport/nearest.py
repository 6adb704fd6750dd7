"""The paper's weights for domain adaptation: the single nearest source."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from wafl.data.federation import Federation
from wafl.weights.transport.clouds import Features, Sampling, read_apart, read_sources_and_target
from wafl.weights.transport.costs import check_size, transport_package
from wafl.weights.transport.distances import Distance, Method, check_method, cloud_distance
from wafl.weights.transport.exchange import MOST_POINTS, Exchange, check_exchange, cuts
from wafl.weights.transport.mixture import weights_from_cuts
from wafl.weights.transport.result import TransportWeights


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
    """The paper's linear program, ``min over the simplex of sum_i lambda_i W_2^2(P_i, Q)``.

    A linear function on the simplex is least at a vertex, so this puts all weight on the single nearest source; for
    the mixture that is itself nearest, use :func:`wafl.weights.mixture`.

    Drawing points makes distances too large, ``E W_2^2(P_n, Q_n) >= W_2^2(P, Q)``, the more so the higher the
    dimension, and ``standard_errors`` do not include this bias; ``features`` reduce it.

    Args:
        sources: a federation (its clients' training examples), or a sequence of arrays ``x`` or pairs ``(x, y)``.
        target: an array, a pair, or a federation, whose training examples are pooled.
        sample: how many points to draw from each side that has more; None takes all.
        seed: what the points are drawn from.
        features: a map of examples ``[n, ...] -> [n, k]``, such as a network's last hidden layer, whose results are
            compared instead.
        label_aware: add to the squared distance of two examples that of the clouds of their labels (OTDD).
        label_cost: kappa, the price of a label in the ball: add ``kappa 1(y != y')``, or ``kappa ||y - y'||^2`` for
            targets of a regression; None compares inputs alone.
        method: ``exact``, or ``entropic`` for the debiased Sinkhorn divergence, which is slower, and less inflated by
            drawing the larger ``regularization`` is.
        regularization: of the entropic method, in multiples of the mean cost.
        exchange: what the sources send: their ``examples``, which are pooled, or only ``cuts``, which show the target's
            examples to every source and leak what :func:`wafl.weights.mixture` says.

    Returns:
        The weights; ``distances`` are ``W_2^2(P_i, Q)``. With cuts each is that of a mixture of one source, at most
        1e-6 of it too large, or 1e-3 for more than 100 points of the target; standard errors are not known.

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
        alone = [weights_from_cuts(partial(cuts, [cloud.x], aim.x), aim.x, None) for cloud in clouds]
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
