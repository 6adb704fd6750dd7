"""The nodes of a study as a source of replies, which count one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Protocol

from torch import Tensor

from wafl.algorithms import Query, Reply
from wafl.algorithms.admission import Exclusion
from wafl.engine.clients import Roster
from wafl.engine.tolerant import Arrivals
from wafl.flower.logs import log
from wafl.flower.wire import NodeQuery


class Asking(Protocol):
    """Clients that are on nodes (:class:`wafl.flower.grid.GridClients`)."""

    @property
    def roster(self) -> Roster: ...

    def ask_nodes(
        self,
        queries: Sequence[Query],
        runs: Sequence[int],
        entry: str,
        needs_sizes: bool,
        shape: Tensor | None = None,
        *,
        everyone: bool,
    ) -> tuple[Mapping[int, list[list[Reply]]], Mapping[int, NodeQuery], Mapping[int, str]]: ...


class Nodes:
    """A source of replies: the nodes that hold the clients asked."""

    def __init__(self, clients: Asking, entry: str, needs_sizes: bool, shape: Tensor | None) -> None:
        self._clients, self._entry, self._needs_sizes, self._shape = clients, entry, needs_sizes, shape

    def collect(self, queries: Sequence[Query], runs: Sequence[int], attempt: int) -> list[Arrivals]:
        if attempt > 0:
            log(WARNING, "round %d: asking again, attempt %d", queries[0].round, attempt + 1)
        # A node that was silent once may be about to reconnect: the second attempt waits for it.
        replies, sent, missing = self._clients.ask_nodes(
            queries, runs, self._entry, self._needs_sizes, self._shape, everyone=attempt > 0
        )
        for client, why in missing.items():
            log(WARNING, "round %d: %s: %s", queries[0].round, self._clients.roster.names[client], why)
        arrived: dict[int, list[Reply]] = {run: [] for run in runs}
        for node, asked in sent.items():
            for run, part in zip(asked.runs, replies.get(node, [[]] * len(asked.runs)), strict=True):
                arrived[run] += part
        return [
            Arrivals(
                arrived[run], [Exclusion(client, missing[client]) for client in query.clients if client in missing]
            )
            for run, query in zip(runs, queries, strict=True)
        ]

    def undo(self, runs: Sequence[int]) -> None:
        """Nothing to do: a node that is asked for a round again begins with what it kept before that round."""
        log(INFO, "too few replies for %d of the runs", len(runs))
