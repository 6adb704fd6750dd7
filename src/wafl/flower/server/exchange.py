"""Exchange messages with nodes: messages, timely replies, and an account of both for each node."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from wafl.config.experiment import Flower

POLL = 0.1
"""The seconds between two checks for replies."""

Sent = dict[str, int]
"""The node of each message, by the message's id."""


@dataclass
class Account:
    """One node's messages; bytes are for the content of messages, without Flower's envelopes."""

    last_seen: str | None = None
    last_reply: str | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    replies: int = 0
    failures: int = 0
    last_failure: str = ""


class Post:
    """A channel that sends one message per node and returns its reply: the content, or a sentence about an error.

    At most ``at_once`` nodes have an unanswered message at a time. ``on_entry`` is called when accounts have changed.
    """

    def __init__(self, grid: Grid, at_once: int = Flower().at_once) -> None:
        self._grid, self.at_once, self._unanswered = grid, at_once, Sent()
        self.accounts: dict[int, Account] = defaultdict(Account)
        self.on_entry: Callable[[], None] = lambda: None

    def nodes(self) -> dict[int, str]:
        """Return the connected nodes, each with the fingerprint of its public key, or "" if Flower gives none."""
        here = {
            node.node_id: sha256(node.public_key).hexdigest() if node.public_key else ""
            for node in self._grid.get_nodes()
        }
        for node in here:
            self.accounts[node].last_seen = timestamp()
        self.on_entry()
        return here

    def send(self, kind: str, contents: Mapping[int, RecordDict], timeout: float, group: str = "") -> Sent:
        """Send a message to each node, and return the ids."""
        messages = [
            Message(content, node, kind, ttl=timeout, group_id=group or kind) for node, content in contents.items()
        ]
        pushed = set(self._grid.push_messages(messages))
        about = [message.metadata for message in messages]
        sent = {each.message_id: each.dst_node_id for each in about if each.message_id in pushed}
        for node in sent.values():
            self.accounts[node].bytes_sent += _bytes(contents[node])
        self._unanswered |= sent
        self.on_entry()
        return sent

    def pull(self, sent: Collection[str]) -> dict[str, RecordDict | str]:
        """Return the first reply to each of these messages so far, by message."""
        replies: dict[str, RecordDict | str] = {}
        for reply in self._grid.pull_messages(list(sent)) if sent else ():
            message = reply.metadata.reply_to_message_id
            if message in sent and message not in replies:
                content = f"{reply.error.reason} (error {reply.error.code})" if reply.has_error() else reply.content
                replies[message] = content
                self._enter(message, content)
        return replies

    def _enter(self, message: str, reply: RecordDict | str) -> None:
        """Enter a reply, or the reason for its absence, into the node's account, once per message."""
        if message not in self._unanswered:
            return
        account = self.accounts[self._unanswered.pop(message)]
        if isinstance(reply, str):
            account.failures, account.last_failure = account.failures + 1, reply
        else:
            account.last_seen = account.last_reply = timestamp()
            account.replies, account.bytes_received = account.replies + 1, account.bytes_received + _bytes(reply)
        self.on_entry()

    def ask(
        self,
        kind: str,
        contents: Mapping[int, RecordDict],
        timeout: float,
        group: str = "",
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[int, RecordDict | str]:
        """Return the reply of every node, or the reason for its absence; ``meanwhile`` is called while waiting."""
        replies: dict[int, RecordDict | str] = dict.fromkeys(contents, "the message could not be sent")
        unsent, waiting, deadlines = list(contents), Sent(), dict[str, float]()
        while unsent or waiting:
            chosen, unsent = unsent[: self.at_once - len(waiting)], unsent[self.at_once - len(waiting) :]
            if chosen:
                sent = self.send(kind, {node: contents[node] for node in chosen}, timeout, group)
                deadlines |= dict.fromkeys(sent, time.monotonic() + timeout)
                waiting |= sent
            for message in [message for message in waiting if deadlines[message] <= time.monotonic()]:
                replies[waiting.pop(message)] = late = f"no reply in {timeout:g} s"
                self._enter(message, late)
            for message, reply in self.pull(waiting).items():
                replies[waiting.pop(message)] = reply
            if waiting:
                meanwhile()
                time.sleep(POLL)
        return replies


def timestamp() -> str:
    """Return the current time in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _bytes(content: RecordDict) -> int:
    return sum(record.count_bytes() for record in content.values())
