"""The server's accounts of its nodes: when each was last seen, what it was sent and has sent, what failed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from flwr.app import RecordDict


@dataclass
class Account:
    """One node's dealings with the server; bytes are those of the messages' content, without Flower's envelopes."""

    last_seen: str | None = None
    last_reply: str | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    replies: int = 0
    failures: int = 0
    last_failure: str = ""


@dataclass
class Ledger:
    """The accounts of all nodes, by id; ``told`` is called after every entry."""

    accounts: dict[int, Account] = field(default_factory=dict[int, Account])
    told: Callable[[], None] = lambda: None

    def see(self, nodes: Iterable[int]) -> None:
        """Note that the SuperLink counts these nodes as connected."""
        now = timestamp()
        for node in nodes:
            self._of(node).last_seen = now
        self.told()

    def send(self, node: int, content: RecordDict) -> None:
        self._of(node).bytes_sent += _bytes(content)
        self.told()

    def receive(self, node: int, reply: RecordDict) -> None:
        account = self._of(node)
        account.last_seen = account.last_reply = timestamp()
        account.replies += 1
        account.bytes_received += _bytes(reply)
        self.told()

    def fail(self, node: int, why: str) -> None:
        """Note that a node gave no reply, and why."""
        account = self._of(node)
        account.failures, account.last_failure = account.failures + 1, why
        self.told()

    def _of(self, node: int) -> Account:
        return self.accounts.setdefault(node, Account())


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _bytes(content: RecordDict) -> int:
    return sum(record.count_bytes() for record in content.values())
