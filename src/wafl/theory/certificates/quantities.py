"""Define the quantities that can be certified: the expected loss and the error rate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wafl.base.describe import rounded
from wafl.tasks.task import Task
from wafl.theory.certificates.certificate import Certificate, Certificates, Quantity, Question, Reach
from wafl.theory.certificates.dual import CLOSE, search_dual
from wafl.theory.certificates.mixture import Asked, AskMeans, Means
from wafl.theory.certificates.sampling import Domain, largest_surrogate
from wafl.theory.certificates.upper import AtRest, ErrorSurrogate, Inquiry, SearchedSurrogate, UpperBound, setting_of
from wafl.theory.networks.margins import leads_of, margins_of

LEAST_SHARE = 0.1
LARGEST = 1e300
"""A gamma at which nothing moves."""
NETWORK_CLOSE = 0.01
"""How close the search for a network's gamma comes: much closer than the bound is to the truth."""
SMALL_LOSS = 1e-3
"""Below this value, a mean loss is too small to define a tolerance."""
Proven = tuple[float, float, float | None]
"""A bound, its gamma, and the tolerance of the search, if there was one."""


@dataclass(frozen=True)
class ExpectedLoss(Quantity):
    """The mean of the loss that the model was trained with, or of another loss."""

    metric = "loss"
    noun = "expected loss"
    simple = "E[loss] + L_z radius"
    largest = math.inf
    has_slopes = True

    def by_margins(self, task: Task) -> bool:
        """Return whether the model is a network whose margins have known slopes."""
        return task.linear(task.initial()[None]) is None and margins_of(task, task.initial(), 1) is not None

    def rows(
        self, means: AskMeans, radii: Sequence[float], question: Question, achieved: Reach
    ) -> tuple[float, float, list[Certificate]]:
        """Bound the loss by duality and by its slope."""
        clean, rest = means(None, [{}]).value[0], means(AtRest(question.norm, question.dtype), [{}]).value[0]
        simple = _simple(means, radii, question, rest)
        if question.power == 1:
            return clean, rest, _of_order_one(means, radii, question, simple)
        if question.finite_above is not None:
            return clean, rest, _tight(means, radii, question, question.finite_above, clean, rest, simple)
        proven = _of_network(means, radii, question, clean, rest)
        return (
            clean,
            rest,
            [
                Certificate(radius, value, gamma, cruder, achieved(radius), tolerance)
                for radius, (value, gamma, tolerance), cruder in zip(radii, proven, simple, strict=True)
            ],
        )

    def inquiry(self, certificates: Certificates, row: Certificate) -> Inquiry:
        """Return the inquiry by duality or by the slope: the smaller bound, unless only one of them is proven."""
        equally = certificates.simple_proven == certificates.proven
        if row.radius == 0 or (row.simple <= row.value if equally else certificates.simple_proven):
            at_rest = AtRest(certificates.norm, certificates.dtype)
            return Inquiry(at_rest, {}, math.inf, float(certificates.L_z * row.radius) if row.radius > 0 else 0.0)
        kind = UpperBound if row.tolerance is None else SearchedSurrogate
        report = kind(certificates.norm, dtype=certificates.dtype)
        setting = setting_of(row.gamma, float(certificates.L_zz), row.tolerance)
        return Inquiry(report, setting, row.gamma, row.gamma * row.radius**2)

    def most(self, asked: Asked, domain: Domain, certificates: Certificates, gamma: float) -> float:
        """Return the largest phi_gamma in the domain."""
        return largest_surrogate(asked.task, asked.params, domain, certificates.L_z, gamma, certificates.norm)


@dataclass(frozen=True)
class ErrorRate(Quantity):
    """The share of examples for which some other class has at least the label's output.

    phi_gamma is at most ``max(0, 1 - gamma d^power)``, where d is the distance to the nearest error.
    """

    metric = "error"
    noun = "error rate"
    simple = "1"
    largest = 1.0
    has_slopes = False

    def missing(self, task: Task, num_classes: int | None) -> str | None:
        """Return the requirement that the model fails; None for linear classifiers and networks of known layers."""
        known = not self.by_margins(task) or leads_of(task, task.initial(), 1) is not None
        if num_classes is not None and known:
            return None
        return (
            "needs a linear classifier or one of known layers, such as wafl.models.lipschitz(clients); a module of "
            "your own may say which Lipschitz constant it has: model.lipschitz = 1.0"
        )

    def by_margins(self, task: Task) -> bool:
        """Return whether the model is not linear."""
        return task.linear(task.initial()[None]) is None

    def rows(
        self, means: AskMeans, radii: Sequence[float], question: Question, achieved: Reach
    ) -> tuple[float, float, list[Certificate]]:
        """Compute the bounds, which are exact for linear models at every gamma, except for rounding."""
        power = question.power
        report = ErrorSurrogate(question.norm, power, label_cost=question.label_cost, dtype=question.dtype)

        def ask(gammas: Sequence[float]) -> Means:
            return means(report, [{"gamma": gamma} for gamma in gammas])

        clean = min(ask([LARGEST]).value[0], self.largest)  # a mean of ones may be rounded up
        budgets = [radius ** (power / 2.0) for radius in radii]  # the search squares them
        dual = search_dual(ask, budgets, 0.0, 1e-9)
        rows: list[Certificate] = []
        for radius, budget in zip(radii, budgets, strict=True):
            value, gamma = dual.least(budget) if radius > 0 else (clean, math.inf)
            reached = dual.reached(budget) if radius > 0 else clean
            best = None if question.by_margins and radius > 0 else min(reached, 1.0)
            rows.append(Certificate(radius, min(value, 1.0), gamma, 1.0, best))
        return clean, clean, rows

    def inquiry(self, certificates: Certificates, row: Certificate) -> Inquiry:
        """Return the inquiry about distances to the nearest error."""
        gamma = LARGEST if row.radius == 0 else row.gamma
        report = ErrorSurrogate(certificates.norm, dtype=certificates.dtype)
        return Inquiry(report, {"gamma": gamma}, gamma, gamma * row.radius**2)

    def most(self, asked: Asked, domain: Domain, certificates: Certificates, gamma: float) -> float:
        """Return 1."""
        return self.largest


def _simple(means: AskMeans, radii: Sequence[float], question: Question, rest: float) -> list[float]:
    """Compute ``E[loss] + L_z radius``: the dual at the gamma at which moves of that slope gain the most."""
    steep = float(question.steep)
    if not question.labels_move or math.isinf(steep):
        return [rest + steep * radius if radius > 0 else rest for radius in radii]
    gammas = [steep if question.power == 1 else steep / (2.0 * radius) for radius in radii if radius > 0]
    report = AtRest(question.norm, question.dtype)
    flipped = iter(means(report, [{"gamma": gamma} for gamma in gammas]).value if gammas else [])
    return [next(flipped) + steep * radius if radius > 0 else rest for radius in radii]


def _of_order_one(
    means: AskMeans, radii: Sequence[float], question: Question, simple: Sequence[float]
) -> list[Certificate]:
    """Certify with ``power=1``, where distance gains nothing above the steepest slope; labels may still pay.

    Below that slope the bound is infinite.
    """
    steep = float(question.steep)
    reached = [None if question.finite_above is None else value for value in simple]
    if not question.labels_move or math.isinf(steep):
        rows = zip(radii, simple, reached, strict=True)
        return [Certificate(radius, value, steep, value, best) for radius, value, best in rows]

    def ask(gammas: Sequence[float]) -> Means:
        return means(AtRest(question.norm, question.dtype), [{"gamma": gamma} for gamma in gammas])

    budgets = [math.sqrt(radius) for radius in radii]  # the search squares them
    dual = search_dual(ask, budgets, steep, 1e-9)
    certificates: list[Certificate] = []
    for radius, budget, cruder, best in zip(radii, budgets, simple, reached, strict=True):
        value, gamma = min(dual.least(budget), (cruder, steep)) if radius > 0 else (cruder, math.inf)
        best = best if best is None or radius == 0 else dual.reached(budget)
        certificates.append(Certificate(radius, value, gamma, cruder, best))
    return certificates


def _tight(
    means: AskMeans,
    radii: Sequence[float],
    question: Question,
    limit: float,
    clean: float,
    rest: float,
    simple: Sequence[float],
) -> list[Certificate]:
    """Certify a linear model at every gamma: search with an ascent's values, then prove the final gammas' values."""
    report, slope = SearchedSurrogate(question.norm, question.dtype), float(question.steep)
    exact = clean if clean > 0 else 1.0

    def ask(gammas: Sequence[float]) -> Means:
        return means(report, [{"gamma": gamma, "proven": 0.0, "tolerance": question.gap * exact} for gamma in gammas])

    # A closed form costs nothing; where labels change, the cost jumps.
    close = CLOSE if limit > 0 or question.labels_move else min(question.gap / 4.0, 0.01)
    targets = [radius for radius in radii if radius > 0]
    # No move at gamma is longer than L_z / (2 gamma), so each radius's gamma is at most L_z / (2 radius).
    first = sorted({slope / (2.0 * radius * share) for radius in targets for share in (1.0, 2.0)})
    dual = search_dual(ask, radii, limit, close, first if limit == 0 and 0 < slope < math.inf else ())
    settings: list[dict[str, float]] = []
    for radius in targets:
        value, gamma = dual.least(radius)
        # Rounded, so that the last digits of a mean do not decide how a search ends. The gap is relative to what the
        # radius adds to the loss, unless that is very little.
        allowed = rounded(question.gap * max(value - clean, LEAST_SHARE * value), 3)
        settings.append(setting_of(gamma if limit > 0 else rounded(gamma, 6), limit, allowed))
    proven = means(report, settings).value if settings else []
    bounds = [(each["gamma"], value, each["tolerance"]) for each, value in zip(settings, proven, strict=True)]
    rows: list[Certificate] = []
    for radius, cruder in zip(radii, simple, strict=True):
        if radius == 0:
            rows.append(Certificate(radius, rest, math.inf, rest, clean))
            continue
        value, gamma, allowed = min((gamma * radius**2 + phi, gamma, allowed) for gamma, phi, allowed in bounds)
        rows.append(Certificate(radius, value, gamma, cruder, max(dual.reached(radius), clean), allowed))
    return rows


def _of_network(means: AskMeans, radii: Sequence[float], question: Question, clean: float, rest: float) -> list[Proven]:
    """Return the smaller of the bounds by curvature and by margins at each radius.

    An L_zz that is only an estimate or a user's claim counts if there is no bound by margins.
    """
    bounds: list[list[Proven]] = []
    if question.bent.proven or not question.by_margins:
        bounds.append(_by_curvature(means, radii, question, rest))
    if question.by_margins:
        bounds.append(_by_margins(means, radii, question, clean, rest))
    return [min(each, key=lambda proven: proven[0]) for each in zip(*bounds, strict=True)]


def _by_curvature(means: AskMeans, radii: Sequence[float], question: Question, rest: float) -> list[Proven]:
    """Bound by the curvature, for gamma above ``L_zz / 2``, where the inner problem is concave or nearly so."""

    def ask(gammas: Sequence[float]) -> Means:
        report = UpperBound(question.norm, dtype=question.dtype)
        return means(report, [setting_of(gamma, float(question.bent), None) for gamma in gammas])

    dual = search_dual(ask, radii, question.bent / 2.0)
    return [(*dual.least(radius), None) if radius > 0 else (rest, math.inf, None) for radius in radii]


def _by_margins(means: AskMeans, radii: Sequence[float], question: Question, clean: float, rest: float) -> list[Proven]:
    """Bound by the margins at every gamma.

    At ``L_z / (2 radius)``, the bound is at most ``E[loss] + L_z radius``.
    """
    report, steep = SearchedSurrogate(question.norm, question.dtype), question.steep
    tolerance = rounded(question.gap * max(clean, SMALL_LOSS), 3)

    def ask(gammas: Sequence[float]) -> Means:
        return means(report, [setting_of(gamma, 0.0, tolerance) for gamma in gammas])

    positive = [radius for radius in radii if radius > 0]
    if not positive or (steep == 0.0 and not question.labels_move):
        return [(rest, math.inf, None if radius == 0 else tolerance) for radius in radii]
    # No move at gamma is longer than L_z / (2 gamma); far smaller gammas than these take far longer to bound.
    first = sorted({steep / (2.0 * each * share) for each in positive for share in (1.0, 2.0)})
    dual = search_dual(ask, positive, 0.0, NETWORK_CLOSE, first if 0.0 < steep < math.inf else ())
    gammas = [*(rounded(dual.least(each)[1], 6) for each in positive), *(steep / (2.0 * each) for each in positive)]
    gammas += [rounded(gamma, 6) for each in positive for gamma in dual.balanced(each)]
    values = ask(gammas).value
    rows: list[Proven] = []
    for radius in radii:
        value, gamma = min((gamma * radius**2 + value, gamma) for gamma, value in zip(gammas, values, strict=True))
        rows.append((value, gamma, tolerance) if radius > 0 else (rest, math.inf, None))
    return rows
