"""Reading ahead: while a query is computed, the disk reads the examples of the clients that will be asked next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wafl.algorithms import Query
from wafl.data.examples import Examples
from wafl.data.mapped import Mapped
from wafl.engine.spec import Spec
from wafl.weights.base import Round, uniform_cohort


class Ahead:
    """Tells the system which examples come next, if they are on disk; no number depends on it."""

    def __init__(self, examples: Examples, specs: Mapping[int, Spec]) -> None:
        self._examples, self._specs = examples, specs

    def expect(self, queries: Sequence[Query], runs: Sequence[int]) -> None:
        """Let the system read what the next queries will be about; these ones announce their own examples."""
        if not isinstance(self._examples.raw, Mapped):
            return
        coming: set[int] = set()
        for query, run in zip(queries, runs, strict=True):
            coming.update(clients_after(query, self._specs[run], self._examples.num_clients))
        clients = sorted(coming.difference(*(query.clients for query in queries)))
        begins, ends = self._examples.offsets[clients], self._examples.offsets[1:][clients]
        self._examples.expect(begins, ends - begins)


def clients_after(query: Query, spec: Spec, num_clients: int) -> tuple[int, ...]:
    """Who will be asked after this query, as far as that is known before it is answered; nobody if all always are.

    A cohort that is drawn by learned weights depends on the answers; one whose losses are asked for does not.
    """
    schedule, rule = spec.schedule, spec.method.client_weights
    if query.kind != "train" or schedule.cohort is None:
        return ()

    def at(number: int) -> Round:
        return Round(number, schedule.seed, num_clients, schedule.cohort or num_clients, 1)

    asked = rule.loss_query(at(query.round))
    if asked is not None and asked.step:
        return asked.clients
    if query.round + 1 == schedule.rounds:
        return ()
    if not rule.learns:
        return uniform_cohort(at(query.round + 1))
    coming = rule.loss_query(at(query.round + 1))
    return () if coming is None else coming.clients
