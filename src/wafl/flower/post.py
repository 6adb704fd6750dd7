"""Messages to nodes, and the replies that come back in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

POLL = 0.1
"""Seconds between two looks for replies."""

Sent = dict[str, int]
"""Which node each message went to."""


class Post:
    """One message per node; a reply is its content, or what went wrong, in words."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def send(self, kind: str, contents: Mapping[int, RecordDict], timeout: float, group: str = "") -> Sent:
        messages = [
            Message(content, node, kind, ttl=timeout, group_id=group or kind) for node, content in contents.items()
        ]
        pushed = set(self._grid.push_messages(messages))
        return {
            message.metadata.message_id: message.metadata.dst_node_id
            for message in messages
            if message.metadata.message_id in pushed
        }

    def pull(self, sent: Collection[str]) -> dict[str, RecordDict | str]:
        """The replies so far, by the message that each belongs to."""
        found: dict[str, RecordDict | str] = {}
        for reply in self._grid.pull_messages(list(sent)) if sent else ():
            what = f"{reply.error.reason} (error {reply.error.code})" if reply.has_error() else reply.content
            found[reply.metadata.reply_to_message_id] = what
        return found

    def ask(
        self,
        kind: str,
        contents: Mapping[int, RecordDict],
        timeout: float,
        group: str = "",
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[int, RecordDict | str]:
        """The reply of every node, or why there is none; ``meanwhile`` is called while waiting."""
        deadline = time.monotonic() + timeout
        waiting = self.send(kind, contents, timeout, group)
        replies: dict[int, RecordDict | str] = dict.fromkeys(contents, "the message could not be sent")
        replies.update(dict.fromkeys(waiting.values(), f"no reply in {timeout:g} s"))
        while waiting and time.monotonic() < deadline:
            for message, what in self.pull(waiting).items():
                replies[waiting.pop(message)] = what
            if waiting:
                meanwhile()
                time.sleep(POLL)
        return replies
