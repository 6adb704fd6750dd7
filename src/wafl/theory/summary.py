"""Summarize the theory for a run: constants, bounds, and promises at one radius."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean
from typing import Annotated, Any, TypeVar

from wafl.base.describe import describe
from wafl.base.errors import PreconditionError
from wafl.base.json_types import check_types
from wafl.base.options import frozen
from wafl.data.federation import Federation
from wafl.local import sgd
from wafl.parts.schedule import LocalWork
from wafl.results.run import Run
from wafl.servers import averaging
from wafl.theory.certificates.certificate import Certificates
from wafl.theory.certificates.certify import certify
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.constants.assumptions import Constants, constants
from wafl.theory.paper import generalization as paper
from wafl.theory.paper.convergence import convergence
from wafl.theory.paper.measured import excess_risk, gradient_spread
from wafl.theory.paper.sandwich import excess_risk_sandwich
from wafl.theory.paper.theorem import Bound, require
from wafl.theory.population.next_client import NextClient, next_client
from wafl.weights import bilevel

Made = tuple[float, str]
"""A value, and how loose it is."""


@frozen
class Promised:
    """A promise that the expected loss, or error rate, of ``whom`` is at most ``value``."""

    whom: Annotated[str, "The clients or data that the promise covers."]
    probability: Annotated[float, "The probability over the draw of examples and clients; 1 if nothing is drawn."]
    value: Annotated[float | None, "The promise; None if there is none."]
    why: Annotated[str, "How far the true value may be below the promise, or why there is no promise."]


def promised(
    run: Run, seen: Federation, unseen: Federation | None, certificates: Certificates, index: int, delta: float = 0.05
) -> list[Promised]:
    """Return the promises at one radius, from the examples at hand to unseen clients.

    ``certificates`` are about the training examples of the clients ``seen``; ``index`` picks the row with the radius.
    Each promise with a probability fails with probability ``delta`` at most.
    """
    row = certificates[index]
    options: dict[str, Any] = {"norm": certificates.norm, "metric": certificates.metric, "confidence": 1.0 - delta}

    def of_sample() -> Made:
        if certificates.caveat is not None:
            raise PreconditionError(_unproven(certificates.reason))
        best = certificates.best_proven(row)
        reached = f"{best / row.achieved:.3f} times what is reached inside" if row.achieved else "nothing is reached"
        return best, reached

    def refuse_labels() -> None:
        if math.isfinite(certificates.label_cost):
            raise PreconditionError(
                f"labels that change (label_cost={certificates.label_cost:g}): only for examples at hand"
            )

    def of_distributions() -> Made:
        refuse_labels()
        beyond = certify(run, seen, radii=[row.radius], split="test", achieved=False, **options)
        if beyond.caveat is not None:
            raise PreconditionError(_unproven(beyond.reason))
        (drawn,) = beyond.rows
        return drawn.best, f"{drawn.margin:.3g} of it pays for the draw of the test examples"

    @cache
    def held_out() -> NextClient:
        refuse_labels()
        if unseen is None:
            raise PreconditionError("no client was held out of training: data.unseen does so")
        held = next_client(run, seen, unseen, radius=row.radius, **options)
        if not held.proven:
            raise PreconditionError(_unproven(held.reason))
        return held

    def of_mean() -> Made:
        held = held_out()
        return held.mean(), f"the mean of the {len(held.names)} that were held out is {fmean(held.measured):.3g}"

    def of_next() -> Made:
        held = held_out()
        return held.next(), f"the largest of the {len(held.names)} that were held out is {max(held.measured):.3g}"

    asked: list[tuple[str, float, Callable[[], Made]]] = [
        ("any data within the radius of the training examples", 1.0, of_sample),
        ("any data within the radius of the clients' distributions", 1.0 - delta, of_distributions),
        ("all clients of the population in the mean, each moved by the radius", 1.0 - delta, of_mean),
        ("the next client's distribution, moved by the radius", 1.0 - delta, of_next),
    ]
    promises: list[Promised] = []
    for whom, probability, make in asked:
        try:
            value, why = make()
        except ValueError as refusal:  # a precondition fails, or there are no test examples
            promises.append(Promised(whom, probability, None, str(refusal)))
        else:
            promises.append(Promised(whom, probability, value, why))
    return promises


def _unproven(reason: str) -> str:
    return f"this model has no proof, because {reason or 'no bound on its slope is known'}"


T = TypeVar("T")

POINTS = 100
"""The number of points of each client for measuring the distance to the barycenter."""
UNKNOWN = "c1 and c2 of Fournier and Guillin are not given, and there are no universal values"

SETTINGS: dict[str, Any] = {
    "method": {"objective": dict[str, Any] | None},
    "schedule": dict[str, Any],
    "scalars": dict[str, float],
}
"""The settings of a run that are needed here; a saved run may come from anywhere."""


@dataclass(frozen=True)
class Refusal:
    """A bound that does not apply, and the precondition that fails."""

    name: str
    reason: str


@dataclass(frozen=True)
class Summary:
    """The bounds for a run.

    ``here`` has the constants at the run's parameters, ``ball`` those for ``||theta|| <= params_radius``.
    """

    here: Constants
    ball: Constants | None
    gamma: float
    radius: float
    bounds: tuple[Bound | Refusal, ...]


def summarize(
    run: Run,
    clients: Federation,
    *,
    gamma: float | None = None,
    radius: float | None = None,
    params_radius: float | None = None,
    data_bounds: tuple[float, float] | None = None,
    label_cost: float | None = None,
    delta: float = 0.05,
    concentration: paper.Concentration | None = None,
    target_distance: float | None = None,
    target_examples: int | None = None,
) -> Summary:
    """Compute every generalization bound of the paper and the convergence rate, for a run on its clients.

    The optimization gap is proven by the tangent plane at the run's parameters (:func:`wafl.theory.excess_risk`), and
    the start is at most two radii away from the best parameters.

    Args:
        run: the run, with its model, loss, weights and settings.
        clients: the clients that the run was trained on.
        gamma: by default the run's gamma, or without an objective the smallest that the bounds accept.
        radius: the radius of the ball; by default ``L_z / gamma``, the smallest that the paper's bounds accept.
        params_radius: the radius of the set of parameters; by default the norm of the run's parameters.
        data_bounds: a box that contains every input; by default the federation's bounds, or the span of its examples.
        label_cost: by default the run's label cost.
        delta: the probability that a bound fails.
        concentration: how fast samples approach the distributions they come from.
        target_distance: the measured W_2 between the mixture and a target, with the same ``label_cost``.
        target_examples: the number of points of the target in that measurement; each client counts with the same
            number.
    """
    check_types(run.settings, SETTINGS, "settings")
    norm, own_cost, bounded = _geometry(run)
    cost = own_cost if label_cost is None else label_cost
    known = partial(constants, run, clients, data_bounds=data_bounds, norm=norm, label_cost=cost)
    given_gamma = gamma if gamma is not None else run.settings["scalars"].get("gamma")
    here, ball, why, price, within = _setting(known, bounded, given_gamma, radius, params_radius)
    best = None if ball is None else certify(run, clients, radii=[within], norm=here.norm, achieved=False)[0].gamma
    weights, sizes = run.client_weights.tolist(), clients.train.num_examples.tolist()
    clean = Mixture.of(run, clients).means(None, [{}]).value[0]
    surrogate = clean + here.L_z**2 / (4.0 * price)
    gap = surrogate - (0.0 if ball is None else _least(run, clients, price, ball))
    options: dict[str, float] = {"gamma": price, "delta": delta, "optimization_gap": gap}
    statements: dict[str, Callable[[], Bound]] = {
        "excess risk, width g": lambda: excess_risk_sandwich(
            _given(ball, why), gamma=price, radius=within, surrogate_excess=gap, gamma_star=best
        ),
        "excess risk in the ball": lambda: paper.robust_generalization(
            _given(ball, why), weights, sizes, radius=within, gamma_star=best, **options
        ),
        "covering radius rho_n": lambda: paper.covering_radius(
            _given(ball, why), weights, sizes, concentration=_given(concentration, UNKNOWN), delta=delta
        ),
        "excess risk on the true mixture": lambda: paper.generalization_to_truth(
            _given(ball, why), weights, sizes, concentration=concentration, **options
        ),
        "W_2 of mixture and target": lambda: paper.distance_to_target(
            weights,
            _at_most(sizes, _given(target_examples, "target_examples is not given: how many were measured with")),
            target_examples or 0,
            empirical_distance=_given(target_distance, "target_distance is not given: wafl weights measures it"),
            concentration=_given(concentration, UNKNOWN),
            label_cost=here.label_cost,
            delta=delta,
        ),
        "W_2 of mixture and its heaviest client": lambda: paper.distance_to_client(
            weights,
            _at_most(sizes, POINTS),
            max(range(len(weights)), key=weights.__getitem__),
            concentration=_given(concentration, UNKNOWN),
            squared_distances=_to_barycenter(clients, weights),
            delta=delta,
        ),
        "mean optimality gap": lambda: _convergence(run, clients, _given(ball, why), sizes, price),
        "mean optimality gap, sigma and Omega as measured": lambda: _convergence(
            run, clients, _given(ball, why), sizes, price, measured=True
        ),
    }
    return Summary(here, ball, price, within, tuple(_attempt(name, state) for name, state in statements.items()))


def _setting(
    known: Callable[..., Constants], bounded: bool, gamma: float | None, radius: float | None, size: float | None
) -> tuple[Constants, Constants | None, str, float, float]:
    """Return the constants here and over the ball of that size (or why there are none), gamma, and the radius."""
    here, ball, why = known(), None, ""
    size = max(here.params_norm, 1e-12) if size is None else size
    try:
        ball = known(params_radius=size)
    except PreconditionError as error:
        why = str(error)
    price = gamma if gamma is not None else _least_gamma(ball or here, radius)
    if not bounded and ball is not None:  # the objective may leave the box, so the domain is larger
        here = known(reach=_finite(here.reach_of(price)))
        ball = known(params_radius=size, reach=_finite(ball.reach_of(price)))
    if gamma is None:
        price = max(
            price, _least_gamma(ball or here, radius)
        )  # with a larger gamma, moves are shorter, so this still holds
    return here, ball, why, price, radius if radius is not None else max((ball or here).L_z / price, 1e-12)


def _least_gamma(known: Constants, radius: float | None) -> float:
    """Return the smallest gamma that the bounds accept, at a radius of 1 if none is given."""
    return max(known.L_z / (radius or 1.0), 0.505 * known.L_zz, 1e-12)


def _finite(reach: float) -> float:
    """Return the reach, or 0 if it is infinite: gamma is then below the limit, so no bound uses it."""
    return reach if math.isfinite(reach) else 0.0


def _to_barycenter(clients: Federation, weights: Sequence[float]) -> tuple[float, ...]:
    """Return ``W_2^2`` from each client to the barycenter at these weights."""
    try:
        return bilevel(clients, weights, sample=POINTS).distances
    except ValueError as error:  # POT is not installed, or there are too many clients
        raise PreconditionError(str(error)) from error


def _at_most(sizes: Sequence[int], points: int) -> list[int]:
    return [min(size, points) for size in sizes]


def _given(value: T | None, otherwise: str) -> T:
    if value is None:
        raise PreconditionError(otherwise)
    return value


def _attempt(name: str, statement: Callable[[], Bound]) -> Bound | Refusal:
    try:
        return replace(statement(), name=name)
    except PreconditionError as error:
        return Refusal(name, str(error))


def _least(run: Run, clients: Federation, gamma: float, ball: Constants) -> float:
    """Return a lower bound on every surrogate in the ball."""
    radius = ball.params_radius
    if radius is None or not ball.convex:
        return 0.0
    bounds = ball.data_bounds if _geometry(run)[2] else None
    options: dict[str, Any] = {"norm": ball.norm, "label_cost": ball.label_cost, "bounds": bounds}
    return excess_risk(run, clients, gamma=gamma, params_radius=radius, steps=0, **options).least


def _convergence(
    run: Run, clients: Federation, ball: Constants, sizes: list[int], gamma: float, *, measured: bool = False
) -> Bound:
    """Return the theorem with a run's proven values; with ``measured``, with estimates of sigma and Omega."""
    schedule = run.settings["schedule"]
    cohort = schedule["cohort"]
    require(
        cohort is None or cohort == len(sizes),
        f"cohort={cohort} of {len(sizes)} clients: the theorem needs all clients in every round",
    )
    require(
        _steps_plainly(run.settings["method"], schedule),
        "momentum, clip_norm, server_learning_rate, or another server or local step: the theorem is about plain steps",
    )
    work = LocalWork(schedule["local_steps"], schedule["local_epochs"], schedule["batch_size"])
    steps = work.num_steps(sizes)
    require(
        min(steps) == max(steps),
        f"clients take {min(steps)} to {max(steps)} local steps: the theorem needs the same for all (local_steps)",
    )
    batch = min(schedule["batch_size"] or min(sizes), min(sizes))
    assert ball.params_radius is not None
    noise, apart = float(ball.L_theta), 2.0 * ball.L_theta
    if measured:
        bounds = ball.data_bounds if _geometry(run)[2] else None
        spreads = gradient_spread(run, clients, gamma=gamma, params_radius=ball.params_radius, draws=2, bounds=bounds)
        noise, apart = float(spreads.noise), float(spreads.heterogeneity)
    return convergence(
        ball,
        run.client_weights.tolist(),
        gamma=gamma,
        rounds=schedule["rounds"],
        local_steps=steps[0],
        distance=2.0 * ball.params_radius,
        noise=noise / math.sqrt(batch),
        heterogeneity=apart,
        weight_decay=schedule["weight_decay"],
    )


def _steps_plainly(method: Mapping[str, Any], schedule: Mapping[str, Any]) -> bool:
    """Return whether clients take plain gradient steps and the server takes the mean of their parameters."""
    extras = (schedule["momentum"], schedule.get("clip_norm"))
    unchanged = schedule["server_learning_rate"] in (None, 1.0) and not any(extras)
    server, local = describe(averaging()), describe(sgd())
    return unchanged and method.get("server", server) == server and method.get("local", local) == local


def _geometry(run: Run) -> tuple[float, float, bool]:
    """Return the norm and label cost of a run's ball, and whether its objective has bounds.

    A run without a ball has l2.
    """
    objective = run.settings["method"]["objective"]
    if objective is None or objective.get("type") != "Wasserstein":
        return 2, math.inf, False
    check_types(objective, {"norm": float | str, "label_cost": float | str, "bounds": Any}, "objective")
    return float(objective["norm"]), float(objective["label_cost"]), objective["bounds"] is not None
