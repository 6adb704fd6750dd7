"""What is proven of a network at each radius: by the curvature, along the margins, or the better of both."""

import math
from collections.abc import Sequence

from wafl.base.describe import rounded
from wafl.tasks.task import Task
from wafl.theory.certificates.certificate import Question
from wafl.theory.certificates.dual import Surrogate, search_dual
from wafl.theory.certificates.mixture import AskMeans, Means
from wafl.theory.certificates.upper import SearchedSurrogate, UpperBound, setting_of
from wafl.theory.networks.margins import leads_of, margins_of

Proven = tuple[float, float, float | None]
"""A bound, the gamma at which it was found, and the tolerance of a search, if there was one."""
CLOSE = 0.01
"""How close the search for gamma comes, much closer than a network's bound is to the truth."""
SMALL_LOSS = 1e-3
"""Below this, a mean loss is too small for a tolerance to be measured by."""


def knows_margins(task: Task) -> bool:
    """Whether the margins of a network have known slopes, and its loss is one of margins."""
    return task.linear(task.initial()[None]) is None and margins_of(task, task.initial(), 1) is not None


def knows_errors(task: Task) -> bool:
    """Whether it is known how far examples are from errors: of linear models, and where margins have known slopes."""
    return task.linear(task.initial()[None]) is not None or leads_of(task, task.initial(), 1) is not None


def prove_network(means: AskMeans, radii: Sequence[float], question: Question, clean: float) -> list[Proven]:
    """The smaller of what is proven at each radius; an estimate by the curvature only if nothing is."""
    found: list[list[Proven]] = []
    if question.bent.proven or not question.by_margins:
        found.append(_by_curvature(means, radii, question, clean))
    if question.by_margins:
        found.append(_by_margins(means, radii, question, clean))
    return [min(each, key=lambda proven: proven[0]) for each in zip(*found, strict=True)]


def _by_curvature(means: AskMeans, radii: Sequence[float], question: Question, clean: float) -> list[Proven]:
    """For gamma above ``L_zz / 2``, where the inner problem is concave or nearly so."""

    def ask(gammas: Sequence[float]) -> list[Surrogate]:
        settings = [{"gamma": gamma, "curvature": float(question.bent)} for gamma in gammas]
        return surrogates_of(means(UpperBound(question.norm), settings))

    dual = search_dual(ask, radii, question.bent / 2.0)
    return [(*dual.least(radius), None) if radius > 0 else (clean, math.inf, None) for radius in radii]


def _by_margins(means: AskMeans, radii: Sequence[float], question: Question, clean: float) -> list[Proven]:
    """For every gamma, among them ``L_z / (2 radius)``, at which it is at most ``E[loss] + L_z radius``."""
    report, steep = SearchedSurrogate(question.norm), question.steep
    tolerance = rounded(question.gap * max(clean, SMALL_LOSS), 3)

    def settings(gammas: Sequence[float]) -> list[dict[str, float]]:
        return [setting_of(gamma, 0.0, tolerance) for gamma in gammas]

    def ask(gammas: Sequence[float]) -> list[Surrogate]:
        return surrogates_of(means(report, settings(gammas)))

    positive = [radius for radius in radii if radius > 0]
    if not positive or (steep == 0.0 and not question.labels_move):
        return [(clean, math.inf, None if radius == 0 else tolerance) for radius in radii]
    dual = search_dual(ask, positive, 0.0, CLOSE)
    gammas = [*(rounded(dual.least(each)[1], 6) for each in positive), *(steep / (2.0 * each) for each in positive)]
    values = means(report, settings(gammas)).value
    rows: list[Proven] = []
    for radius in radii:
        value, gamma = min((gamma * radius**2 + value, gamma) for gamma, value in zip(gammas, values, strict=True))
        rows.append((value, gamma, tolerance) if radius > 0 else (clean, math.inf, None))
    return rows


def surrogates_of(found: Means) -> list[Surrogate]:
    return [Surrogate(value, cost) for value, cost in zip(found.value, found.cost, strict=True)]
