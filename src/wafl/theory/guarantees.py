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
    run: Run, seen: Federation, unseen: Federation | None, found: Certificates, place: int, delta: float = 0.05
) -> list[Promised]:
    """What is promised at the radius of one certificate, from the examples at hand to clients that nobody has seen.

    ``found`` are certificates of the training examples of the clients ``seen``, ``place`` is which of them, and
    ``delta`` is how often each promise with a probability may fail.
    """
    row = found[place]
    options: dict[str, Any] = {"norm": found.norm, "metric": found.metric, "confidence": 1.0 - delta}

    def of_sample() -> Made:
        if found.caveat is not None:
            raise PreconditionError(_unproven(found.reason))
        best = found.best_proven(row)
        reached = f"{best / row.achieved:.3f} times what is reached inside" if row.achieved else "nothing is reached"
        return best, reached

    def refuse_labels() -> None:
        if math.isfinite(found.label_cost):
            raise PreconditionError(f"labels that change (label_cost={found.label_cost:g}): only for examples at hand")

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
        said = next_client(run, seen, unseen, radius=row.radius, **options)
        if not said.proven:
            raise PreconditionError(_unproven(said.reason))
        return said

    def of_mean() -> Made:
        said = held_out()
        return said.mean(), f"the mean of the {len(said.names)} that were held out is {fmean(said.measured):.3g}"

    def of_next() -> Made:
        said = held_out()
        return said.next(), f"the largest of the {len(said.names)} that were held out is {max(said.measured):.3g}"

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
