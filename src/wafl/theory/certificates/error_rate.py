"""The error rate of a classifier as a certified quantity."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wafl.tasks.task import Task
from wafl.theory.certificates.certificate import Certificate, Certificates, Quantity, Question
from wafl.theory.certificates.dual import Surrogate, search_dual
from wafl.theory.certificates.mixture import Asked, AskMeans
from wafl.theory.certificates.network_bound import knows_errors, surrogates_of
from wafl.theory.certificates.sampling import Domain
from wafl.theory.certificates.upper import ErrorSurrogate, Inquiry

LARGEST = 1e300
"""A gamma at which nothing moves."""


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
        if num_classes is not None and knows_errors(task):
            return None
        return (
            "needs a linear classifier or one of known layers, such as wafl.models.lipschitz(clients); a module of "
            "your own may say which Lipschitz constant it has: model.lipschitz = 1.0"
        )

    def by_margins(self, task: Task) -> bool:
        return task.linear(task.initial()[None]) is None

    def rows(
        self, means: AskMeans, radii: Sequence[float], question: Question, achieved: Callable[[float], float | None]
    ) -> tuple[float, list[Certificate]]:
        """Exact for linear models at every gamma."""
        report, power = ErrorSurrogate(question.norm, question.power, label_cost=question.label_cost), question.power

        def ask(gammas: Sequence[float]) -> list[Surrogate]:
            return surrogates_of(means(report, [{"gamma": gamma} for gamma in gammas]))

        clean = ask([LARGEST])[0].value
        budgets = [radius ** (power / 2.0) for radius in radii]  # the search squares them
        dual = search_dual(ask, budgets, 0.0, 1e-9)
        rows: list[Certificate] = []
        for radius, budget in zip(radii, budgets, strict=True):
            value, gamma = dual.least(budget) if radius > 0 else (clean, math.inf)
            reached = dual.reached(budget) if radius > 0 else clean
            best = None if question.by_margins and radius > 0 else min(reached, 1.0)
            rows.append(Certificate(radius, min(value, 1.0), gamma, 1.0, best))
        return clean, rows

    def inquiry(self, found: Certificates, row: Certificate) -> Inquiry:
        gamma = LARGEST if row.radius == 0 else row.gamma
        return Inquiry(ErrorSurrogate(found.norm), {"gamma": gamma}, gamma, gamma * row.radius**2)

    def most(self, asked: Asked, domain: Domain, found: Certificates, gamma: float) -> float:
        return self.largest
