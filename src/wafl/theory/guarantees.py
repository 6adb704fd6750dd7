"""What is promised about a run at one radius: to whom, with which probability, and how loosely."""

import math
from collections.abc import Callable
from functools import cache
from statistics import fmean
from typing import Annotated, Any

from wafl.base.errors import PreconditionError
from wafl.base.options import frozen
from wafl.data.federation import Federation
from wafl.results.run import Run
from wafl.theory.certificates.certificate import Certificates
from wafl.theory.certificates.certify import certify
from wafl.theory.population.next_client import NextClient, next_client

Made = tuple[float, str]
"""A value, and how loose it is."""


@frozen
class Promised:
    """The expected loss, or error rate, of ``whom`` is at most ``value``."""

    whom: Annotated[str, "Whom it is about."]
    probability: Annotated[float, "Over the draw of examples and clients; 1 if nothing is drawn."]
    value: Annotated[float | None, "The promise; None if there is none."]
    why: Annotated[str, "How far the truth may be below, or why there is no promise."]


def promised(
    run: Run, seen: Federation, unseen: Federation | None, certificates: Certificates, index: int, delta: float = 0.05
) -> list[Promised]:
    """Return what is promised at one radius, from the examples at hand to clients that nobody has seen.

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
        beyond = certify(run, seen, radii=[row.radius], part="test", achieved=False, **options)
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
