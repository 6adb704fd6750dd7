"""The nodes of a study as a source of replies."""

from collections.abc import Callable, Mapping, Sequence
from logging import INFO, WARNING

from wafl.flower.wire.logs import log
from wafl.parts.messages import Query, Reply
from wafl.train.trust.admission import Exclusion
from wafl.train.trust.tolerant import Arrivals

Asked = tuple[Mapping[int, list[Reply]], Mapping[int, str]]
"""The replies by run, and by client why there is no reply."""


class Nodes:
    """A source of replies: the nodes that hold the clients asked.

    ``ask(queries, runs, everyone)`` asks them; with ``everyone``, it waits for all of them. Nodes count runs from
    ``offset`` on.
    """

    def __init__(self, ask: Callable[[Sequence[Query], Sequence[int], bool], Asked], offset: int) -> None:
        self._ask, self._offset = ask, offset

    def collect(self, queries: Sequence[Query], runs: Sequence[int], attempt: int) -> list[Arrivals]:
        if attempt > 0:
            log(WARNING, "round %d: asking again, attempt %d", queries[0].round, attempt + 1)
        # A node that was silent once may be about to reconnect: the second attempt waits for it.
        numbers = [run + self._offset for run in runs]
        replies, missing = self._ask(queries, numbers, attempt > 0)
        return [
            Arrivals(
                replies[run], [Exclusion(client, missing[client]) for client in query.clients if client in missing]
            )
            for run, query in zip(numbers, queries, strict=True)
        ]

    def undo(self, runs: Sequence[int]) -> None:
        """Do nothing but log: a node that is asked for a round again begins with what it kept before that round."""
        log(INFO, "too few replies for %d of the runs", len(runs))
