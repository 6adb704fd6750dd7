"""Messages to nodes, and the replies that come back in time."""

import time
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from wafl.config.experiment import Flower
from wafl.flower.server.ledger import Ledger

POLL = 0.1
"""Seconds between two looks for replies."""

Sent = dict[str, int]
"""The node that each message went to, by the message's id."""


class Post:
    """What sends one message per node and gets its reply: its content, or what went wrong, in words.

    At most ``at_once`` nodes have an unanswered message at a time.
    """

    def __init__(self, grid: Grid, at_once: int = Flower().at_once) -> None:
        self._grid, self.at_once = grid, at_once
        self.ledger, self._unanswered = Ledger(), Sent()

    def nodes(self) -> dict[int, str]:
        """The nodes that are connected, each with the fingerprint of its public key, or "" if Flower gives none."""
        here = {
            node.node_id: sha256(node.public_key).hexdigest() if node.public_key else ""
            for node in self._grid.get_nodes()
        }
        self.ledger.see(set(here))
        return here

    def send(self, kind: str, contents: Mapping[int, RecordDict], timeout: float, group: str = "") -> Sent:
        messages = [
            Message(content, node, kind, ttl=timeout, group_id=group or kind) for node, content in contents.items()
        ]
        pushed = set(self._grid.push_messages(messages))
        about = [message.metadata for message in messages]
        sent = {each.message_id: each.dst_node_id for each in about if each.message_id in pushed}
        for node in sent.values():
            self.ledger.send(node, contents[node])
        self._unanswered |= sent
        return sent

    def pull(self, sent: Collection[str]) -> dict[str, RecordDict | str]:
        """The replies so far, by the message that each belongs to."""
        found: dict[str, RecordDict | str] = {}
        for reply in self._grid.pull_messages(list(sent)) if sent else ():
            what = f"{reply.error.reason} (error {reply.error.code})" if reply.has_error() else reply.content
            found[reply.metadata.reply_to_message_id] = what
            self._enter(reply.metadata.reply_to_message_id, what)
        return found

    def _enter(self, message: str, reply: RecordDict | str) -> None:
        """Enter into the ledger, once, what a node has replied, or why it has not."""
        node = self._unanswered.pop(message, None)
        if node is not None:
            self.ledger.fail(node, reply) if isinstance(reply, str) else self.ledger.receive(node, reply)

    def ask(
        self,
        kind: str,
        contents: Mapping[int, RecordDict],
        timeout: float,
        group: str = "",
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[int, RecordDict | str]:
        """The reply of every node, or why there is none; ``meanwhile`` is called while waiting."""
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
            for message, what in self.pull(waiting).items():
                replies[waiting.pop(message)] = what
            if waiting:
                meanwhile()
                time.sleep(POLL)
        return replies
