"""Ask the nodes questions about their clients, repeatedly until all have replied."""

import time
from collections.abc import Callable, Sequence
from logging import WARNING
from typing import Protocol, TypeVar

from flwr.app import RecordDict

from wafl.base.errors import TooFewRepliesError
from wafl.config.experiment import Flower
from wafl.flower.node.refusals import check_refusal
from wafl.flower.server.census import Census
from wafl.flower.server.exchange import POLL, Post
from wafl.flower.wire.logs import log
from wafl.flower.wire.values import WireError

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Exchange(Protocol[T_co]):
    """A query to a node about some of its clients, with a function that reads the reply."""

    def encode(self) -> RecordDict:
        """Return the message."""
        ...

    def read(self, reply: RecordDict) -> T_co:
        """Return the content of a reply."""
        ...


class Inquiry:
    """A sender of questions to the nodes of a census, each question at most ``attempts`` times."""

    def __init__(self, post: Post, census: Census, settings: Flower, attempts: int) -> None:
        self._post, self._census, self._settings, self._attempts = post, census, settings, attempts

    def ask_all(
        self,
        kind: str,
        names: Sequence[str],
        query: Callable[[tuple[str, ...], tuple[int, ...]], Exchange[T]],
        *,
        some: Sequence[int] | None = None,
    ) -> list[tuple[list[int], T]]:
        """Return each node's reply about its clients; ask nodes that fail again.

        ``query`` makes a node's question from the names of its clients and their indices among all names. A reply that
        is still missing after all attempts is an error. If only ``some`` clients are asked, by their indices, the error
        is raised only if all replies are missing.
        """
        replies: list[tuple[list[int], T]] = []
        missing = dict.fromkeys(range(len(names)) if some is None else some, "no node holds it")
        for attempt in range(self._attempts):
            homes = self.reachable([names[number] for number in missing])
            asked: dict[int, list[int]] = {}
            for number in missing:
                if names[number] in homes:
                    asked.setdefault(homes[names[number]], []).append(number)
            queries = {
                node: query(tuple(names[number] for number in numbers), tuple(numbers))
                for node, numbers in asked.items()
            }
            contents = {node: each.encode() for node, each in queries.items()}
            for node, reply in self._post.ask(kind, contents, self._settings.round_timeout).items():
                try:
                    replies.append((asked[node], queries[node].read(self.heard(node, reply))))
                except WireError as error:
                    missing.update(dict.fromkeys(asked[node], str(error)))
                    log(WARNING, "%s: %s (attempt %d)", kind, error, attempt + 1)
                else:
                    for number in asked[node]:
                        del missing[number]
            if not missing:
                return replies
        if replies and some is not None:
            return replies
        number, why = next(iter(missing.items()))
        raise TooFewRepliesError(
            f"{kind}: no usable reply from {len(missing)} clients in {self._attempts} attempts; {names[number]}: {why}"
        )

    def heard(self, node: int, reply: RecordDict | str) -> RecordDict:
        """Return the content of a node's reply.

        After a missing reply, the node gets no queries until it is greeted again.
        """
        called = self._census.label(node)
        if isinstance(reply, str):
            self._census.doubt(node)
            raise WireError(f"{reply} from {called}")
        try:
            check_refusal(reply)
        except WireError as error:
            raise WireError(f"{called}: {error}") from error
        return reply

    def reachable(self, names: Sequence[str], *, everyone: bool = False) -> dict[str, int]:
        """Return the node of each reachable client; wait for one client, or with ``everyone`` for all of them."""
        self._census.look()
        deadline, enough = time.monotonic() + self._settings.wait, len(names) if everyone else 1
        while len(homes := {n: h for n, h in self._census.homes().items() if n in names}) < enough:
            if time.monotonic() > deadline:
                log(WARNING, "%d of %d clients could be reached in %g s", len(homes), len(names), self._settings.wait)
                return homes
            time.sleep(POLL)
            self._census.look()
        return homes
