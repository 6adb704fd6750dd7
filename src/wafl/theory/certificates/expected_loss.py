"""The expected loss as a certified quantity."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wafl.base.describe import rounded
from wafl.tasks.task import Task
from wafl.theory.certificates.certificate import Certificate, Certificates, Quantity, Question
from wafl.theory.certificates.dual import CLOSE, Surrogate, search_dual
from wafl.theory.certificates.mixture import Asked, AskMeans
from wafl.theory.certificates.network_bound import knows_margins, prove_network, surrogates_of
from wafl.theory.certificates.sampling import Domain, largest_surrogate
from wafl.theory.certificates.upper import Inquiry, SearchedSurrogate, report_for, setting_of

LEAST_SHARE = 0.1


@dataclass(frozen=True)
class ExpectedLoss(Quantity):
    """The mean of the loss that the model was trained with, or of another one."""

    metric = "loss"
    noun = "expected loss"
    simple = "E[loss] + L_z radius"
    largest = math.inf
    has_slopes = True

    def by_margins(self, task: Task) -> bool:
        return knows_margins(task)

    def rows(
        self, means: AskMeans, radii: Sequence[float], question: Question, achieved: Callable[[float], float | None]
    ) -> tuple[float, list[Certificate]]:
        clean = means(None, [{}]).value[0]
        simple = _simple(means, radii, question, clean)
        if question.power == 1:
            return clean, _of_order_one(means, radii, question, simple)
        if question.finite_above is not None:
            return clean, _tight(means, radii, question, question.finite_above, clean, simple)
        proven = prove_network(means, radii, question, clean)
        return clean, [
            Certificate(radius, value, gamma, cruder, achieved(radius), tolerance)
            for radius, (value, gamma, tolerance), cruder in zip(radii, proven, simple, strict=True)
        ]

    def inquiry(self, found: Certificates, row: Certificate) -> Inquiry:
        """By duality or by the slope: the smaller bound, unless only one of them is proven."""
        equally = found.simple_proven == found.proven
        if row.radius == 0 or (row.simple <= row.value if equally else found.simple_proven):
            return Inquiry(None, {}, math.inf, float(found.L_z * row.radius) if row.radius > 0 else 0.0)
        setting = found.setting(row)
        return Inquiry(report_for(setting, found.norm), setting, row.gamma, row.gamma * row.radius**2)

    def most(self, asked: Asked, domain: Domain, found: Certificates, gamma: float) -> float:
        return largest_surrogate(asked.task, asked.params, domain, found.L_z, gamma, found.norm)


def _simple(means: AskMeans, radii: Sequence[float], question: Question, clean: float) -> list[float]:
    """``E[loss] + L_z radius``: the dual at the gamma at which moves of that slope gain the most."""
    steep = float(question.steep)
    if not question.labels_move or math.isinf(steep):
        return [clean + steep * radius if radius > 0 else clean for radius in radii]
    gammas = [steep if question.power == 1 else steep / (2.0 * radius) for radius in radii if radius > 0]
    flipped = iter(means(None, [{"gamma": gamma} for gamma in gammas]).value if gammas else [])
    return [next(flipped) + steep * radius if radius > 0 else clean for radius in radii]


def _of_order_one(
    means: AskMeans, radii: Sequence[float], question: Question, simple: Sequence[float]
) -> list[Certificate]:
    """Beyond its steepest slope the loss gains nothing from distance, and below it everything; labels may still pay."""
    steep = float(question.steep)
    reached = [None if question.finite_above is None else value for value in simple]
    if not question.labels_move or math.isinf(steep):
        rows = zip(radii, simple, reached, strict=True)
        return [Certificate(radius, value, steep, value, best) for radius, value, best in rows]

    def ask(gammas: Sequence[float]) -> list[Surrogate]:
        return surrogates_of(means(None, [{"gamma": gamma} for gamma in gammas]))

    budgets = [math.sqrt(radius) for radius in radii]  # the search squares them
    dual = search_dual(ask, budgets, steep, 1e-9)
    found: list[Certificate] = []
    for radius, budget, cruder, best in zip(radii, budgets, simple, reached, strict=True):
        value, gamma = min(dual.least(budget), (cruder, steep)) if radius > 0 else (cruder, math.inf)
        best = best if best is None or radius == 0 else dual.reached(budget)
        found.append(Certificate(radius, value, gamma, cruder, best))
    return found


def _tight(
    means: AskMeans, radii: Sequence[float], question: Question, limit: float, clean: float, simple: Sequence[float]
) -> list[Certificate]:
    """For every gamma: search with what an ascent reaches, then prove the value at the gammas found."""
    report, slope = SearchedSurrogate(question.norm), float(question.steep)
    exact = clean if clean > 0 else 1.0

    def ask(gammas: Sequence[float]) -> list[Surrogate]:
        settings = [{"gamma": gamma, "proven": 0.0, "tolerance": question.gap * exact} for gamma in gammas]
        return surrogates_of(means(report, settings))

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
    lines = [(each["gamma"], value, each["tolerance"]) for each, value in zip(settings, proven, strict=True)]
    rows: list[Certificate] = []
    for radius, cruder in zip(radii, simple, strict=True):
        if radius == 0:
            rows.append(Certificate(radius, clean, math.inf, clean, clean))
            continue
        value, gamma, allowed = min((gamma * radius**2 + phi, gamma, allowed) for gamma, phi, allowed in lines)
        rows.append(Certificate(radius, value, gamma, cruder, max(dual.reached(radius), clean), allowed))
    return rows
