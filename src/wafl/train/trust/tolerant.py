"""Rounds in which clients may fail: the usable replies make the round, and one with too few of them is repeated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from wafl.base.errors import TooFewRepliesError
from wafl.parts.messages import Query, Reply
from wafl.train.trust.admission import NOTHING, Admitted, Exclusion, Tolerance, admit, not_finite
from wafl.train.trust.caps import Caps


@dataclass(frozen=True)
class Arrivals:
    """What came back from one query, usable or not, and the clients whose replies did not come."""

    replies: Sequence[Reply]
    missing: Sequence[Exclusion] = ()


class Source(Protocol):
    """Clients that reply to queries, though perhaps not all of them."""

    def collect(self, queries: Sequence[Query], runs: Sequence[int], attempt: int) -> list[Arrivals]:
        """What arrives for each query in one attempt, counted from 0."""
        ...

    def undo(self, runs: Sequence[int]) -> None:
        """Forget the last attempt of these runs, which failed."""


class Tolerant:
    """An engine of clients that may fail: a round with too few usable replies is repeated."""

    def __init__(self, source: Source, tolerance: Tolerance, caps: Caps | None = None) -> None:
        self._source, self._tolerance, self._caps = source, tolerance, caps

    def run(self, queries: Sequence[Query], runs: Sequence[int]) -> list[Admitted]:
        tolerance, admitted, why = self._tolerance, dict[int, Admitted](), ""
        diverged: dict[int, Admitted] = {}
        for attempt in range(tolerance.attempts):
            waiting = {run: query for run, query in zip(runs, queries, strict=True) if run not in admitted}
            arrivals = self._source.collect(list(waiting.values()), list(waiting), attempt)
            for (run, query), arrived in zip(waiting.items(), arrivals, strict=True):
                answer = admit(query, arrived.replies, tolerance, self._caps)
                faulty, excluded = answer.excluded, [*arrived.missing, *answer.excluded]
                diverged.pop(run, None)
                if tolerance.enough(len(answer.replies.clients), len(query.clients)):
                    admitted[run] = replace(answer, excluded=excluded, attempts=attempt + 1)
                    continue
                why = next((f" ({out.reason})" for out in excluded), "")
                if faulty and all(not_finite(out) for out in faulty) and not arrived.missing:
                    reason = f"{len(faulty)} clients: {faulty[0].reason}"
                    diverged[run] = Admitted(query, NOTHING, faulty, attempt + 1, reason)
            failed = [run for run in waiting if run not in admitted]
            if not failed:
                return [admitted[run] for run in runs]
            self._source.undo(failed)
        # If other runs had enough replies, the clients are not to blame.
        if admitted and all(run in admitted or run in diverged for run in runs):
            return [admitted.get(run) or diverged[run] for run in runs]
        query = next(query for run, query in zip(runs, queries, strict=True) if run not in admitted)
        asked, share = len(query.clients), tolerance.min_replies
        needed = f"{share:.0%} of {asked} clients" if share else "one client"
        cause = ""
        if not admitted and all(run in diverged for run in runs):
            cause = "; every reply came and none was finite: if no client is broken, lower the learning rate"
        raise TooFewRepliesError(
            f"round {query.round}: fewer than {needed} gave a usable reply{why}, {tolerance.attempts} times over"
            f"{cause}; the rounds before it are kept"
        )
