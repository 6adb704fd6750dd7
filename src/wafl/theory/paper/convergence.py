"""Bound the convergence of Algorithm 1: the paper's convergence theorem, in a form that can be computed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wafl.base.checks import check_positive
from wafl.base.options import Count, NotNegative
from wafl.theory.constants.assumptions import Constants
from wafl.theory.paper.generalization import check_weights
from wafl.theory.paper.theorem import Bound, require, root


@dataclass(frozen=True)
class Rate(Bound):
    """A bound at a learning rate; ``best_learning_rate`` minimizes it, ``paper_learning_rate`` is the paper's."""

    learning_rate: float = math.nan
    best_learning_rate: float = math.nan
    paper_learning_rate: float = math.nan


def convergence(
    constants: Constants,
    client_weights: Sequence[float],
    *,
    gamma: float,
    rounds: int,
    local_steps: int,
    distance: float,
    noise: float,
    heterogeneity: float,
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
) -> Rate:
    """Bound the mean gap ``F - min F`` over all local steps, for a loss convex in the parameters (theorem 3.6).

    With all clients in every round and ``learning_rate <= 1 / L``, where L is the smoothness of phi_gamma, the mean of
    ``F(mean of the clients' parameters)`` over the steps 0 .. K - 1 of all rounds is at most

        D^2 / (2 eta K T) + eta Lambda sigma^2 / 2
            + eta^2 L (1 - Lambda) [Omega^2 (K - 1) (2 K - 1) / 3 + sigma^2 (K - 1) / 2],

    where D is the ``distance``, sigma the ``noise``, Omega the ``heterogeneity``, and ``Lambda = sum lambda_i^2``. With
    one local step, or one client, there is no drift.

    The paper's bound, with ``eta <= 1 / (3 L)`` and ``max(sigma, Omega)`` for Omega, is
    ``D^2 / (2 eta K T) + 2 eta Lambda sigma^2 + eta^2 L Omega^2 (24 K^2 + 20 K)``. It requires a learning rate of "at
    most" the minimum of four terms, but its rate needs equality, and its 48 and 40 belong in each other's terms: its
    choice is reported as ``paper_learning_rate``, and the value of its bound there as ``paper``. The last step of its
    proof is wrong, too (docs/proofs.md), but the bound survives, as this one is below it.

    A bound on the gradient bounds both sigma and Omega: ``noise <= L_theta``, ``heterogeneity <= 2 L_theta``. The
    constants must hold wherever the objective goes: if it has no bounds, compute them with
    ``reach=constants.reach_of(gamma)``. A regularizer ``weight_decay / 2 ||theta||^2`` (appendix G.2) counts into F,
    which stays convex: it is the same for all clients and examples, so that it adds to L alone.

    Args:
        constants: the constants of the loss, over a bounded set of parameters (``params_radius``).
        client_weights: lambda, one weight per client.
        gamma: the price of transport.
        rounds: T.
        local_steps: K.
        distance: the distance from the start to the minimizer.
        noise: the standard deviation of a batch's gradient.
        heterogeneity: the largest ``||grad F_i - grad F||``.
        learning_rate: eta; None takes the one that minimizes the bound.
        weight_decay: the weight decay of the clients' steps.
    """
    check_positive("gamma", gamma)
    for name, value in (
        ("distance", distance),
        ("noise", noise),
        ("heterogeneity", heterogeneity),
        ("weight_decay", weight_decay),
    ):
        NotNegative.check(name, value)
    for name, count in (("rounds", rounds), ("local_steps", local_steps)):
        Count().check(name, count)
    require(constants.convex, "the loss is not convex in the parameters: the theorem needs a linear model")
    require(
        constants.params_radius is not None,
        "the parameters are not bounded, and L_zz grows with them: give params_radius=C, a ball that training stays "
        "in, to wafl.theory.constants",
    )
    require(math.isinf(constants.label_cost), "labels move: phi_gamma is then not smooth; use label_cost=inf")
    smoothness = float(constants.smoothness(gamma)) + weight_decay
    cap = 1.0 / smoothness
    spread = sum(weight**2 for weight in check_weights(client_weights, [1] * len(client_weights)))
    steps, total = local_steps, local_steps * rounds
    start, jitter = distance**2 / (2.0 * total), 0.5 * spread * noise**2
    drift = heterogeneity**2 * (steps - 1) * (2 * steps - 1) / 3.0 + noise**2 * (steps - 1) / 2.0
    apart = smoothness * max(1.0 - spread, 0.0) * drift

    def terms(rate: float) -> dict[str, float]:
        return {"start": start / rate, "noise": rate * jitter, "client drift": rate**2 * apart}

    def slope(rate: float) -> float:
        return -start / rate**2 + jitter + 2.0 * rate * apart

    # Convex in the rate: the minimum is where the slope vanishes, or at the cap.
    low = cap * 1e-12
    best = cap if slope(cap) <= 0 else low if slope(low) >= 0 else root(slope, low, cap)
    by_paper, paper = _paper(distance, noise, max(noise, heterogeneity), spread, smoothness, steps, rounds)
    rate = best if learning_rate is None else learning_rate
    _check_rate(rate, smoothness)
    inputs = {"gamma": gamma, "L": smoothness, "learning rate": rate}
    return Rate("mean optimality gap", terms(rate), by_paper, inputs, rate, best, paper)


def round_progress(
    client_weights: Sequence[float],
    *,
    smoothness: float,
    learning_rate: float,
    local_steps: int,
    noise: float,
    drift: float,
    before: float,
    after: float,
) -> Bound:
    """Bound the mean gap ``F - min F`` over the local steps of one round, for convex F_i and all clients (lemma C.2).

    ``(before^2 - after^2) / (2 eta K) + eta Lambda sigma^2 / 2 + L drift / 2`` for ``eta <= 1 / L``. The paper has
    ``2 eta Lambda sigma^2 + L drift`` for the last two, and ``eta <= 1 / (3 L)``. It is proven like the rate
    (docs/proofs.md).

    Args:
        client_weights: as in :func:`convergence`.
        smoothness: L of phi_gamma in the parameters, :meth:`Constants.smoothness`.
        learning_rate: as in :func:`convergence`.
        local_steps: as in :func:`convergence`.
        noise: as in :func:`convergence`.
        drift: ``sum_i lambda_i E ||theta_i - mean||^2``, the mean over the steps; :func:`client_drift` bounds it.
        before: the distance to the minimizer at the start of the round.
        after: its root mean square at the end.
    """
    _check_rate(learning_rate, smoothness)
    spread = sum(weight**2 for weight in check_weights(client_weights, [1] * len(client_weights)))
    progress = (before**2 - after**2) / (2.0 * learning_rate * local_steps)
    jitter = learning_rate * spread * noise**2 / 2.0
    terms = {"progress": progress, "noise": jitter, "client drift": smoothness * drift / 2.0}
    inputs = {"L": smoothness, "learning rate": learning_rate}
    return Bound("mean gap of a round", terms, progress + 4.0 * jitter + smoothness * drift, inputs)


def client_drift(
    *, smoothness: float, learning_rate: float, local_steps: int, noise: float, heterogeneity: float
) -> Bound:
    """Bound ``E ||theta_i - mean||^2``, a client's squared distance from the mean of all, within a round (lemma C.3).

    ``eta^2 (8 K^2 Omega^2 + 4 K sigma^2)`` for ``eta <= 1 / L``: after k of K steps the root mean square distance of
    two clients is at most ``eta (2 Omega k + sigma sqrt(2 k))``. The paper has ``eta^2 (24 K^2 + 20 K) max(sigma,
    Omega)^2``; its last line does not follow, but is true (docs/proofs.md). The arguments are as in
    :func:`round_progress` and :func:`convergence`.
    """
    _check_rate(learning_rate, smoothness)
    square, steps = learning_rate**2, local_steps
    terms = {"heterogeneity": 8.0 * square * steps**2 * heterogeneity**2, "noise": 4.0 * square * steps * noise**2}
    paper = square * (24.0 * steps**2 + 20.0 * steps) * max(noise, heterogeneity) ** 2
    return Bound("client drift", terms, paper, {"L": smoothness, "learning rate": learning_rate})


def _check_rate(learning_rate: float, smoothness: float) -> None:
    check_positive("learning_rate", learning_rate)
    check_positive("smoothness", smoothness)
    require(
        learning_rate * smoothness <= 1.0 + 1e-12,
        f"learning_rate={learning_rate:g} must be at most 1 / L = {1.0 / smoothness:.4g}: lower it, or raise gamma",
    )


def _paper(
    distance: float, noise: float, drift: float, spread: float, smoothness: float, steps: int, rounds: int
) -> tuple[float, float]:
    """Return the paper's bound at the paper's learning rate, and that rate."""
    total = steps * rounds
    rate = min(
        1.0 / (3.0 * smoothness),
        _ratio(distance, 2.0 * math.sqrt(total * spread) * noise),
        _ratio(distance ** (2 / 3), (48.0 * steps**2 * rounds * smoothness * drift**2) ** (1 / 3)),
        _ratio(distance ** (2 / 3), (40.0 * steps**3 * rounds * smoothness * drift**2) ** (1 / 3)),
    )
    if rate == 0:
        return math.inf, rate
    apart = rate**2 * smoothness * drift**2 * (24.0 * steps**2 + 20.0 * steps)
    return distance**2 / (2.0 * rate * total) + 2.0 * rate * spread * noise**2 + apart, rate


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0 else math.inf
