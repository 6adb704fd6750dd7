"""Which clients there are and which node holds each: every node that connects is asked, at the start or later."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from logging import INFO, WARNING, getLogger

from flwr.app import RecordDict

from wafl.core.errors import TooFewRepliesError
from wafl.engine.clients import Roster
from wafl.flower.post import POLL, Post, Sent
from wafl.flower.wire import LARGEST, Reader, WireError, check_refusal, config_only, short
from wafl.runs.config import Flower

log = getLogger("flwr").log  # what Flower shows of a Flower run
OFTEN = 0.5
"""Seconds between two looks for nodes."""


@dataclass(frozen=True)
class Hello:
    """What a node says about itself; ``classes`` is 0 for a regression, and sizes are sent only if asked for."""

    names: tuple[str, ...]
    numbers: tuple[int, ...] | None
    sizes: tuple[int, ...] | None
    tested: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int
    outputs: int
    unit: str
    bounds: tuple[float, float] | None

    def encode(self) -> RecordDict:
        return config_only(
            "reply",
            names=list(self.names),
            numbers=None if self.numbers is None else list(self.numbers),
            sizes=None if self.sizes is None else list(self.sizes),
            tested=list(self.tested),
            shape=list(self.shape),
            classes=self.classes,
            outputs=self.outputs,
            unit=self.unit,
            bounds=None if self.bounds is None else list(self.bounds),
        )

    @classmethod
    def decode(cls, content: RecordDict, with_sizes: bool) -> Hello:
        check_refusal(content)
        read = Reader(content, "reply")
        names = read.different("names")
        if not names:
            raise WireError("names is empty: a node must hold at least one client")
        bounds = read.many("bounds", float, 2) if read.has("bounds") else None
        shape = tuple(read.many("shape", int, None, 1, LARGEST))
        numbers = read.many("numbers", int, len(names), 0, LARGEST) if read.has("numbers") else None
        classes, outputs = read.one("classes", int, 0, 10**9), read.one("outputs", int, 1, 10**9)
        if not shape:
            raise WireError("shape is empty: an example must have at least one dimension")
        if bounds is not None and not bounds[0] < bounds[1]:
            raise WireError(f"bounds={bounds} must be (low, high) with low < high")
        if classes not in (0, outputs):
            raise WireError(f"classes={classes} must equal outputs={outputs}, or be 0 for a regression")
        if numbers is not None and len(set(numbers)) != len(numbers):
            raise WireError(f"numbers={short(numbers)} must all differ")
        return cls(
            names,
            None if numbers is None else tuple(numbers),
            tuple(read.many("sizes", int, len(names), 1, LARGEST)) if with_sizes else None,
            tuple(name for name in read.many("tested", str) if name in names),
            shape,
            classes,
            outputs,
            read.one("unit", str)[:200],
            None if bounds is None else (bounds[0], bounds[1]),
        )


class Census:
    """Keeps the roster: clients stay in their places, and those that join later come after them.

    With ``closed``, no client joins later. ``on_roster`` is called with every roster before it is used.
    """

    def __init__(
        self,
        post: Post,
        settings: Flower,
        with_sizes: bool,
        known: Roster | None = None,
        on_roster: Callable[[Roster], None] | None = None,
        closed: bool = False,
    ) -> None:
        self._post, self._settings, self._with_sizes = post, settings, with_sizes
        self._roster, self._on_roster, self._closed = known, on_roster, closed
        self._greeted: Sent = {}
        self._refused: set[int] = set()
        self._present: dict[int, Hello] = {}
        self._looked = -OFTEN

    @property
    def roster(self) -> Roster:
        assert self._roster is not None, "gather first"
        return self._roster

    def gather(self) -> Roster:
        """Wait for as many nodes as the settings say, but not forever; the clients of those nodes are the roster."""
        settings = self._settings
        deadline = time.monotonic() + settings.wait
        log(INFO, "waiting up to %g s for %d nodes", settings.wait, settings.nodes)
        while len(self._present) < settings.nodes and time.monotonic() < deadline:
            self._greet()
            time.sleep(POLL)
        if len(self._present) < settings.min_nodes:
            raise TooFewRepliesError(
                f"{len(self._present)} nodes with usable data connected within {settings.wait:g} s, "
                f"{settings.min_nodes} are needed: start more SuperNodes, raise flower.wait, or lower flower.min_nodes"
            )
        self._enroll()
        log(INFO, "%d nodes hold %s", len(self._present), self.roster)
        return self.roster

    def look(self) -> None:
        """Greet nodes that have connected, read their replies, and forget nodes that have gone; waits for nobody.

        However often it is called, it asks the SuperLink only now and then.
        """
        if time.monotonic() < self._looked + OFTEN:
            return
        self._looked = time.monotonic()
        self._greet()
        self._enroll()

    def doubt(self, node: int) -> None:
        """A node that did not reply is asked nothing more until it replies to a greeting."""
        self._present.pop(node, None)

    def homes(self) -> dict[str, int]:
        """The node of each client that can be reached; if two nodes claim a client, the one that connected last."""
        return {name: node for node, hello in self._present.items() for name in hello.names}

    def tested(self) -> set[str]:
        """Clients that have test examples."""
        return {name for hello in self._present.values() for name in hello.tested}

    def _greet(self) -> None:
        here = self._post.nodes()
        self._refused &= here  # a node that reconnects may have been fixed
        for node in [node for node in self._present if node not in here]:
            log(WARNING, "node %d has left, and with it %s", node, _some(self._present.pop(node).names))
        fresh = here - self._present.keys() - self._refused - set(self._greeted.values())
        if fresh:
            hello = config_only("query", sizes=self._with_sizes)
            self._greeted |= self._post.send("query.hello", dict.fromkeys(fresh, hello), self._settings.wait)
        for message, reply in self._post.pull(self._greeted).items():
            node = self._greeted.pop(message)
            try:
                if isinstance(reply, str):
                    raise WireError(reply)
                hello = self._checked(Hello.decode(reply, self._with_sizes))
                twice = tuple(name for name in hello.names if name in self.homes())
                if twice:
                    log(WARNING, "node %d takes over from another: %s", node, _some(twice))
                self._present[node] = hello
            except WireError as error:
                # A node that could not reply may have been cut off: it is greeted again when it reconnects.
                if isinstance(reply, str):
                    log(INFO, "node %d did not reply: %s", node, error)
                else:
                    self._refused.add(node)
                    log(WARNING, "node %d takes no part: %s", node, error)
        self._greeted = {message: node for message, node in self._greeted.items() if node in here}

    def _checked(self, hello: Hello) -> Hello:
        """Refuse a node whose examples differ in kind from those of the other nodes."""
        other = next(iter(self._present.values()), None)
        roster = self._roster
        if roster is not None:
            classes = roster.num_classes or 0
            agreed = (roster.input_shape, roster.unit, roster.bounds, classes > 0)
            if hello.outputs > roster.num_outputs:
                raise WireError(f"it has {hello.outputs} classes or targets, the model {roster.num_outputs} outputs")
        elif other is not None:
            agreed = (other.shape, other.unit, other.bounds, other.classes > 0)
        else:
            return hello
        mine = (hello.shape, hello.unit, hello.bounds, hello.classes > 0)
        for name, own, common in zip(("shape", "unit", "bounds", "classification"), mine, agreed, strict=True):
            if own != common:
                raise WireError(f"its examples have {name} {own}, those of other nodes {common}: all nodes must agree")
        return hello

    def _enroll(self) -> None:
        """Add new clients to the end of the roster."""
        known = self._roster
        names = () if known is None else known.names
        found: dict[str, tuple[int, str, int]] = {}
        for hello in self._present.values():
            for place, name in enumerate(hello.names):
                if name not in names:
                    number = -1 if hello.numbers is None else hello.numbers[place]
                    found[name] = (number, name, 0 if hello.sizes is None else hello.sizes[place])
        if not found or (known is not None and self._closed):
            return
        order = sorted(found.values())
        fresh, sizes = tuple(name for _, name, _ in order), tuple(size for _, _, size in order)
        if known is not None:
            log(INFO, "new clients: %s", _some(fresh))
            roster = replace(known, names=known.names + fresh, num_examples=known.num_examples + sizes)
        else:
            hellos = list(self._present.values())
            first, classes = hellos[0], max(hello.classes for hello in hellos)
            roster = Roster(
                fresh,
                sizes,
                first.shape,
                max(hello.outputs for hello in hellos),
                classes or None,
                first.unit,
                first.bounds,
            )
        if self._on_roster is not None:
            self._on_roster(roster)
        self._roster = roster


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
