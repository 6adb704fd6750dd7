"""Compute the squared W_2 distance between data sets, exact or debiased entropic, and weights that minimize it."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from wafl.base.checks import check_positive
from wafl.weights.fixed import Fixed
from wafl.weights.transport.clouds import Cloud, Features, Sampling, read_sources_and_target
from wafl.weights.transport.costs import check_size, ground_cost, solve_pair, transport_package

Method = Literal["exact", "entropic"]


@dataclass(frozen=True)
class Distance:
    """A squared W_2 distance, or W_1; ``standard_error`` accounts only for the random draw of the points."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class TransportWeights(Fixed):
    """Client weights, and the distance of their mixture ``P_lambda`` from its target.

    Can be passed to :func:`wafl.fit` as ``client_weights``. ``weights`` has one number per source, and they sum to 1.
    ``value`` is the minimized squared W_2 distance between the used points, at most ``gap`` above its minimum. If
    ``kind`` is ``entropic``, it is the debiased estimate. ``distances`` are squared, too; the rule's docstring defines
    them. ``standard_errors`` are their standard errors, or nan if unknown. They account only for the draw of the
    points, and are 0 if all points were used.
    """

    rule: str
    kind: Method
    value: float
    gap: float
    distances: tuple[float, ...]
    standard_errors: tuple[float, ...]

    @classmethod
    def of(
        cls, rule: str, weights: Iterable[float], value: float, distances: Sequence[Distance], gap: float = 0.0,
        kind: Method = "exact",
    ) -> Self:  # fmt: skip
        """Return the weights that a rule chose, with the distances at these weights."""
        values, errors = zip(*((each.value, each.standard_error) for each in distances), strict=True)
        return cls(tuple(weights), rule, kind, value, gap, values, errors)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights, one per source."""
        return self.values

    @property
    def radius(self) -> float:
        """The radius of the W_2 ball around ``P_lambda`` that reaches the target, or every client: ``sqrt(value)``."""
        return math.sqrt(self.value)

    def __str__(self) -> str:
        weights = ", ".join(f"{weight:.3g}" for weight in self.values)
        return f"{self.rule}: W_2^2 = {self.value:.6g} ({self.kind}, gap {self.gap:.2g}) at weights ({weights})"


def distance(
    a: Any,
    b: Any,
    *,
    sample: int | None = 1000,
    seed: int = 0,
    features: Features | None = None,
    label_aware: bool = False,
    label_cost: float | None = None,
    method: Method = "exact",
    regularization: float = 0.05,
    order: int = 2,
) -> Distance:
    """Compute ``W_p^p(P, Q)`` (equation 3): the smallest mean of ``d^p`` over all ways to transport P to Q.

    Args:
        a: an array ``x`` or a pair ``(x, y)``.
        b: an array, a pair, or a federation, whose training examples are pooled.
        sample: the number of points to draw from a larger side; None takes all.
        seed: the seed of the draw.
        features: a map of examples ``[n, ...] -> [n, k]``, such as a network's last hidden layer, whose outputs are
            compared instead.
        label_aware: add the squared distance between the clouds of the two labels (OTDD).
        label_cost: kappa, the price of a label in the ball: add ``kappa 1(y != y')``, or ``kappa ||y - y'||^2`` for
            regression targets; None compares only inputs.
        method: ``exact``, or ``entropic`` for the debiased Sinkhorn divergence.
        regularization: the regularization of the entropic method, in multiples of the mean cost.
        order: the order p, 1 or 2.

    >>> points = torch.arange(6.0)[:, None]
    >>> distance(points, points + 3)
    Distance(value=9.0, standard_error=0.0)
    """
    sampling = Sampling(sample, seed, features, label_aware, label_cost, order)
    check_method(method, regularization)
    transport_package()
    (cloud,), target = read_sources_and_target([a], b, sampling)
    check_size(len(cloud) * len(target))
    return cloud_distance(cloud, target, method, regularization)


def check_method(method: str, regularization: float) -> None:
    """Raise ValueError for an unknown method or a regularization that is not positive."""
    if method not in ("exact", "entropic"):
        raise ValueError(f"method={method!r} must be 'exact' or 'entropic'")
    check_positive("regularization", regularization)


def cloud_distance(a: Cloud, b: Cloud, method: Method, regularization: float) -> Distance:
    """Return the distance between two clouds by this method."""
    return exact_distance(a, b) if method == "exact" else sinkhorn_divergence(a, b, regularization)


def exact_distance(a: Cloud, b: Cloud) -> Distance:
    """Return the exact distance between two clouds."""
    if a is b:
        return Distance(0.0, 0.0)
    pair = solve_pair(ground_cost(a, b))
    return Distance(pair.value, standard_error([(pair.f, a), (pair.g, b)]))


def standard_error(terms: Iterable[tuple[Tensor, Cloud]]) -> float:
    """Return ``sqrt(sum of Var(f) / n (1 - n/N))`` over clouds of n out of N points, with their potentials f.

    W_2^2 of drawn points is asymptotically normal, with the variance of the potentials, by the theorem of del Barrio
    and Loubes (Annals of Probability, 2019); The factor ``1 - n/N`` accounts for drawing without replacement.
    Potentials on the same points are summed first.
    """
    potentials: dict[Cloud, Tensor] = {}
    for potential, cloud in terms:
        potentials[cloud] = potentials.get(cloud, 0.0) + potential
    variance = 0.0
    for cloud, potential in potentials.items():
        if len(cloud) < cloud.total:
            spread = float(potential.var()) if len(cloud) > 1 else math.nan
            variance += spread / len(cloud) * (1.0 - len(cloud) / cloud.total)
    return math.sqrt(variance)


def sinkhorn_divergence(a: Cloud, b: Cloud, regularization: float) -> Distance:
    """Return ``OT_eps(a, b) - OT_eps(a, a)/2 - OT_eps(b, b)/2`` (Feydy et al., AISTATS 2019), 0 for a = b."""
    cost = ground_cost(a, b)
    epsilon = regularization * (float(cost.mean()) or 1.0)
    f, g = _sinkhorn(cost, epsilon)
    # Both potentials of a cloud with itself are the same function up to a constant, which cancels in their mean.
    f, g = (h - sum(_sinkhorn(ground_cost(c, c), epsilon)) / 2 for h, c in ((f, a), (g, b)))
    return Distance(max(float(f.mean() + g.mean()), 0.0), standard_error([(f, a), (g, b)]))


def _sinkhorn(cost: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return potentials whose means sum to ``OT_eps``; the error of this dual value is of second order."""
    ot = transport_package()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            solved = ot.solve(cost.numpy(), reg=epsilon, max_iter=10_000, tol=1e-3 / math.sqrt(cost.shape[1]))
        except UserWarning as warning:
            raise RuntimeError(f"Sinkhorn did not converge at epsilon={epsilon:g}: raise regularization") from warning
    f, g = (epsilon * (torch.from_numpy(log) + math.log(len(log))) for log in solved.potentials)
    return f, g
