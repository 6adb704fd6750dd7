"""Compute the paper's generalization bounds, one function per statement, next to the paper's values if they differ."""

import math
from collections.abc import Sequence
from typing import Annotated

from wafl.base.checks import check_positive
from wafl.base.options import Count, NotNegative, Positive, Range, frozen
from wafl.theory.constants.assumptions import Constants
from wafl.theory.paper.sandwich import excess_risk_sandwich, require_ball
from wafl.theory.paper.theorem import Bound, require, require_proven, root

DELTA = Range(0.0, 1.0, ": it is the probability with which the bound may fail", low_open=True, high_open=True)
ENTROPY = 1.3526
"""At least ``integral of sqrt(log(1 + 2 / u)) over 0 <= u <= 1``: the entropy of a ball, by the volume of its nets."""


@frozen
class Concentration:
    """The constants of Fournier and Guillin (2015, theorem 2) for a distribution with finite ``E exp(||Z||^alpha)``.

    No universal values of c1 and c2 are known: they depend on the distribution, and one pair must hold for all clients
    and the target.

    >>> Concentration(c1=2.0, c2=1.0, alpha=3.0, dimension=2).squared_distance(200, 0.1) < 0.2
    True
    """

    c1: Annotated[float, Range(1.0, hint=": a probability is bounded at every distance"), "The factor of the bound."]
    c2: Annotated[float, Positive(), "The rate in its exponent."]
    alpha: Annotated[float, Range(2.0, hint=": W_2 needs that many moments", low_open=True), "The power of the moment."]
    dimension: Annotated[int, Count(), "The dimension of the examples."]

    def squared_distance(self, num_examples: int, delta: float) -> float:
        """Return the rho-hat that ``W_2^2(empirical, true)`` exceeds with probability at most ``delta``.

        ``P(W_2^2 >= x) <= c1 exp(-c2 n x^2)`` for ``x <= 1`` and fewer than 4 dimensions, with ``x^(d/2)`` instead for
        more than 4 and ``(x / log(2 + 1/x))^2`` for exactly 4; and ``c1 exp(-c2 n x^(alpha/2))`` for ``x > 1``. This
        bounds a squared distance: its root bounds the distance.
        """
        DELTA.check("delta", delta)
        Count().check("num_examples", num_examples)
        rate = max(math.log(self.c1 / delta), 0.0) / (self.c2 * num_examples)
        if rate > 1.0:
            return rate ** (2.0 / self.alpha)
        if self.dimension != 4:
            return rate ** min(2.0 / self.dimension, 0.5)

        def excess(x: float) -> float:
            return (x / math.log(2.0 + 1.0 / x)) ** 2 - rate

        return root(excess, 1e-300, 1.0) if rate > 0.0 and excess(1.0) >= 0.0 else float(rate > 0.0)

    def paper_squared_distance(self, num_examples: int, delta: float) -> float:
        """Return the paper's value: no logarithm in 4 dimensions, and beyond 1 a distance's exponent, ``1 / alpha``."""
        rate = max(math.log(self.c1 / delta), 0.0) / (self.c2 * num_examples)
        return rate ** (1.0 / self.alpha if rate > 1.0 else min(2.0 / self.dimension, 0.5))


def robust_generalization(
    constants: Constants,
    client_weights: Sequence[float],
    num_examples: Sequence[int],
    *,
    gamma: float,
    radius: float,
    delta: float = 0.05,
    optimization_gap: float = 0.0,
    gamma_star: float | None = None,
) -> Bound:
    """Bound the excess risk on every Q within ``radius`` of the truth, with probability ``1 - delta`` (theorem 4.4).

    ``24 s C(Theta) + M s sqrt(2 log(2 / delta)) + optimization_gap + g`` with ``s = sqrt(sum_i lambda_i^2 / n_i)``,
    ``C(Theta) <= 1.3526 C L_theta sqrt(d)`` for the ball ``||theta|| <= C`` in d dimensions, and the g of
    :func:`excess_risk_sandwich`. The data domain and the parameter set must be bounded (otherwise L_theta and M are
    infinite); for the paper's l2 ball, gamma must be above the concavity limit ``L_zz / 2`` (in the paper L_zz). The
    constants must hold wherever the objective goes: if it has no bounds, compute them with
    ``reach=constants.reach_of(gamma)``. The paper has
    ``sum_i lambda_i [48 C(Theta) / sqrt(n_i) + 2 M sqrt(2 log(2 m / delta) / n_i)]`` and a different g.

    Args:
        constants: the constants of the loss, over a bounded set of parameters (``params_radius``).
        client_weights: lambda, one weight per client.
        num_examples: n_i, one count per client.
        gamma: the price of transport.
        radius: the radius of the ball that contains Q.
        delta: the probability that the bound fails.
        optimization_gap: how far training stopped above the best surrogate.
        gamma_star: the minimizer of the dual; if given, the paper's value is reported too.
    """
    NotNegative.check("optimization_gap", optimization_gap)
    sandwich = excess_risk_sandwich(constants, gamma=gamma, radius=radius, gamma_star=gamma_star)
    statistics = _statistics(constants, client_weights, num_examples, gamma, delta)
    terms = {**statistics, "optimization": optimization_gap, **sandwich.terms}
    paper = None
    if sandwich.paper is not None:
        printed = _paper_statistics(constants, client_weights, num_examples, delta, levels=2)
        paper = printed + optimization_gap + sandwich.paper
    return Bound("excess risk in the ball", terms, paper, {"gamma": gamma, "radius": radius, "delta": delta})


def generalization_to_truth(
    constants: Constants,
    client_weights: Sequence[float],
    num_examples: Sequence[int],
    *,
    gamma: float,
    concentration: Concentration | None = None,
    delta: float = 0.05,
    optimization_gap: float = 0.0,
) -> Bound:
    """Bound the excess risk on the true mixture itself, with probability ``1 - delta`` (corollary 4.5).

    ``24 s C(Theta) + M s sqrt(2 log(2 / delta)) + optimization_gap + L_z^2 / (4 gamma)``, as in
    :func:`robust_generalization`: the truth lies at distance 0 from itself, so that no ball has to cover it. The paper
    takes :func:`covering_radius` as the radius of a ball around the sample and half of delta for that, which costs its
    whole g.

    Args:
        constants: as in :func:`robust_generalization`.
        client_weights: as in :func:`robust_generalization`.
        num_examples: as in :func:`robust_generalization`.
        gamma: as in :func:`robust_generalization`.
        concentration: how fast samples approach the distributions they come from; if given, and labels have a finite
            ``label_cost``, the paper's bound is reported too, with ``gamma radius^2`` for its unknown
            ``|gamma - gamma*| radius^2``.
        delta: as in :func:`robust_generalization`.
        optimization_gap: as in :func:`robust_generalization`.
    """
    check_positive("gamma", gamma)
    NotNegative.check("optimization_gap", optimization_gap)
    statistics = _statistics(constants, client_weights, num_examples, gamma, delta)
    require_proven(L_z=constants.L_z)
    steep = float(constants.L_z)
    terms = {
        **statistics,
        "optimization": optimization_gap,
        "L_z^2 / (4 gamma)": steep**2 / (4.0 * gamma),
    }
    inputs, paper = {"gamma": gamma, "delta": delta}, None
    if concentration is not None and math.isfinite(constants.label_cost):
        radius = covering_radius(constants, client_weights, num_examples, concentration=concentration, delta=delta)
        printed = _paper_statistics(constants, client_weights, num_examples, delta, levels=4)
        if gamma >= steep / radius.value * (1.0 - 1e-12):
            paper = printed + optimization_gap + 2.0 * steep * radius.value + gamma * radius.value**2
    return Bound("excess risk on the true mixture", terms, paper, inputs)


def covering_radius(
    constants: Constants,
    client_weights: Sequence[float],
    num_examples: Sequence[int],
    *,
    concentration: Concentration,
    delta: float = 0.05,
) -> Bound:
    """Bound the W_2 distance of the true mixture to the empirical one (corollary 4.5).

    It holds with probability ``1 - delta / 2``:
    ``rho_n = sqrt(sum_i lambda_i rho-hat_i)``, where ``W_2^2`` exceeds rho-hat_i with probability ``delta / (2 m)``, so
    that the m levels add up to ``delta / 2``. The paper states ``delta / m`` but proves it with ``delta / 2m``. The
    terms are the clients' shares of ``rho_n``. If labels cannot move (``label_cost=inf``), the ball contains only
    distributions with the sample's label frequencies, so no radius covers the truth.

    Args:
        constants: the constants of the loss; their ``label_cost`` must be finite.
        client_weights: lambda, one weight per client.
        num_examples: n_i, one count per client.
        concentration: how fast samples approach the distributions they come from.
        delta: twice the probability that the bound fails.
    """
    _require_moving_labels(constants.label_cost)
    return _sampling_radius(client_weights, num_examples, concentration, delta)


def distance_to_target(
    client_weights: Sequence[float],
    num_examples: Sequence[int],
    target_examples: int,
    *,
    empirical_distance: float,
    concentration: Concentration,
    label_cost: float | None = None,
    delta: float = 0.05,
) -> Bound:
    """Bound ``W_2(P_lambda, Q)`` for a target Q, with probability ``1 - delta`` (corollary 5.1).

    ``sqrt(sum_i lambda_i rho-hat_i) + W_2(empirical mixture, empirical target) + sqrt(rho-hat_Q)``: the measured
    distance and the sampling error at either end (equation 7). rho-hat bounds a squared distance, so the last term is
    its root; the paper leaves out the root. All sizes count the measured points.

    Args:
        client_weights: as in :func:`covering_radius`.
        num_examples: as in :func:`covering_radius`.
        target_examples: the number of examples of the target.
        empirical_distance: the measured W_2, such as ``wafl.weights.mixture(..., label_cost=...).radius``.
        concentration: as in :func:`covering_radius`.
        label_cost: the label cost of the measured distance; None if it was measured between inputs alone.
        delta: the probability that the bound fails.
    """
    NotNegative.check("distance", empirical_distance)
    if label_cost is not None:
        _require_moving_labels(label_cost)
    sampling = _sampling_radius(client_weights, num_examples, concentration, delta)
    at_target = concentration.squared_distance(target_examples, delta / 2.0)
    terms = {
        "sampling of the clients": sampling.value,
        "empirical distance": empirical_distance,
        "sampling of the target": math.sqrt(at_target),
    }
    paper = empirical_distance + concentration.paper_squared_distance(target_examples, delta / 2.0)
    return Bound("W_2 of mixture and target", terms, paper + (sampling.paper or 0.0), {"delta": delta})


def distance_to_client(
    client_weights: Sequence[float],
    num_examples: Sequence[int],
    client: int,
    *,
    squared_distances: Sequence[float],
    concentration: Concentration,
    delta: float = 0.05,
) -> Bound:
    """Bound ``W_2(P_lambda, P_j)`` of a client j, between inputs, with probability ``1 - delta`` (corollary B.1).

    ``sqrt(sum_i lambda_i rho-hat_i) + rho* + W_2(P_j, Q) + sqrt(rho-hat_j)`` with
    ``rho*^2 = sum_i lambda_i W_2^2(P_i, Q)``, which is at least ``W_2^2(P_lambda, Q)``. It holds for every Q, but the
    distances must be measured at these weights; the barycenter has the least rho*. The paper bounds ``W_2(P_j, Q)`` by
    ``rho* / lambda_j``, has no root in the last term, and takes rho* from a program whose value is 0 at weights that
    are not those in use.

    Args:
        client_weights: as in :func:`distance_to_target`.
        num_examples: as in :func:`distance_to_target`.
        client: the index of the client, counted from 0.
        squared_distances: ``W_2^2(P_i, Q)``, one per client: ``wafl.weights.bilevel(clients, weights).distances``.
        concentration: as in :func:`distance_to_target`.
        delta: as in :func:`distance_to_target`.
    """
    for value in squared_distances:
        NotNegative.check("distance", value)
    weights = check_weights(client_weights, num_examples)
    if not 0 <= client < len(weights):
        raise ValueError(f"client={client} must lie in 0 .. {len(weights) - 1}")
    if len(squared_distances) != len(weights):
        raise ValueError(f"{len(squared_distances)} squared_distances for {len(weights)} clients: give one per client")
    star = math.sqrt(sum(w * d for w, d in zip(weights, squared_distances, strict=True)))
    sampling = _sampling_radius(client_weights, num_examples, concentration, delta)
    of_client = concentration.squared_distance(num_examples[client], delta / 2.0)
    terms = {
        "sampling of the clients": sampling.value,
        "mixture to barycenter": star,
        "barycenter to client": math.sqrt(squared_distances[client]),
        "sampling of the client": math.sqrt(of_client),
    }
    printed = concentration.paper_squared_distance(num_examples[client], delta / 2.0)
    far = star / weights[client] if weights[client] > 0 else math.inf
    paper = (sampling.paper or 0.0) + star + far + printed
    return Bound(f"W_2 of mixture and client {client}", terms, paper, {"delta": delta})


def _sampling_radius(
    client_weights: Sequence[float], num_examples: Sequence[int], concentration: Concentration, delta: float
) -> Bound:
    DELTA.check("delta", delta)
    weights = check_weights(client_weights, num_examples)
    level, count = delta / (2.0 * len(weights)), len(weights)
    pairs = list(zip(weights, num_examples, strict=True))
    squares = [weight * concentration.squared_distance(number, level) for weight, number in pairs]
    radius = math.sqrt(sum(squares))
    paper = math.sqrt(sum(w * concentration.paper_squared_distance(n, delta / count) for w, n in pairs))
    shares = {f"client {i}": square / radius if radius > 0 else 0.0 for i, square in enumerate(squares)}
    return Bound("covering radius rho_n", shares, paper, {"delta": delta})


def _statistics(
    constants: Constants, client_weights: Sequence[float], num_examples: Sequence[int], gamma: float, delta: float
) -> dict[str, float]:
    """Return the two terms that vanish with more examples: the models' complexity, and the price of confidence."""
    DELTA.check("delta", delta)
    weights = check_weights(client_weights, num_examples)
    params_radius = require_ball(constants)
    require_proven(L_theta=constants.L_theta, max_loss=constants.max_loss, L_zz=constants.L_zz)
    require(
        constants.norm != 2 or gamma > constants.L_zz / 2.0,
        f"gamma={gamma:g} must exceed the concavity limit L_zz / 2 = {constants.L_zz / 2.0:.4g}: raise gamma, or "
        "shrink params_radius (weight_decay)",
    )
    s = math.sqrt(sum(w * w / n for w, n in zip(weights, num_examples, strict=True)))
    complexity = ENTROPY * params_radius * constants.L_theta * math.sqrt(constants.num_params)
    return {
        "complexity": 24.0 * s * complexity,
        "confidence": constants.max_loss * s * math.sqrt(2.0 * math.log(2.0 / delta)),
    }


def _paper_statistics(
    constants: Constants, client_weights: Sequence[float], num_examples: Sequence[int], delta: float, levels: int
) -> float:
    """Return the sum of both terms in the paper's form, client by client, with 3 / 2 for the entropy integral."""
    inverse_roots = sum(w / math.sqrt(n) for w, n in zip(client_weights, num_examples, strict=True))
    complexity = 1.5 * require_ball(constants) * constants.L_theta * math.sqrt(constants.num_params)
    deviation = 2.0 * constants.max_loss * math.sqrt(2.0 * math.log(levels * len(client_weights) / delta))
    return (48.0 * complexity + deviation) * inverse_roots


def _require_moving_labels(label_cost: float) -> None:
    require(
        0 < label_cost < math.inf,
        f"label_cost={label_cost:g}: labels cannot move, so no ball around a sample holds the true label frequencies; "
        "give a finite label_cost",
    )


def check_weights(client_weights: Sequence[float], num_examples: Sequence[int]) -> list[float]:
    """Return the client weights as plain numbers.

    Raises ValueError for weights off the simplex, and for clients without examples.
    """
    weights = [float(weight) for weight in client_weights]
    if len(weights) != len(num_examples) or not weights:
        raise ValueError(f"{len(weights)} client weights and {len(num_examples)} sizes: give one of each per client")
    if not (all(weight >= 0 for weight in weights) and abs(sum(weights) - 1.0) <= 1e-6):  # NaN is neither
        raise ValueError(
            f"client_weights sum to {sum(weights):.6g}, the least is {min(weights):g}: they must lie on the simplex"
        )
    if min(num_examples) < 1:
        raise ValueError(f"num_examples={min(num_examples)} must be at least 1 for every client")
    return weights
