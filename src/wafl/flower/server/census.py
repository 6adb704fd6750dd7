"""Count the clients: every node that connects reports its clients, at the start or later."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from wafl.base.describe import some
from wafl.base.errors import ConfigError, TooFewRepliesError
from wafl.config.experiment import Flower
from wafl.data.bring.intake import Intake
from wafl.data.splits import draw_unseen
from wafl.flower.node.hello import Hello
from wafl.flower.node.refusals import signature
from wafl.flower.server.claims import capped, too_many
from wafl.flower.server.exchange import POLL, Post, Sent
from wafl.flower.wire.logs import log
from wafl.flower.wire.values import WireError, config_only
from wafl.train.clients import Roster
from wafl.train.trust.caps import Caps
from wafl.train.trust.trust import FEW

OFTEN = 0.5
"""The seconds between two checks for nodes."""
PRIVATE = "%s is private (%s): it adds noise, its losses are 0, and it is not tested"
SMALL = "%s: %s have too few examples and take no part: the node's operator may admit them (min-examples)"


class Census:
    """The roster of clients and the node of each; clients that join later are appended to the roster.

    With ``closed``, no client joins later. ``on_roster`` is called with every roster before it is used. Nodes and
    clients that claim more than the ``caps`` allow take no part. ``unseen`` is the share of the first clients that take
    no part in training, and the seed for drawing them. ``classes`` is the experiment's declared number of classes.
    """

    def __init__(
        self,
        post: Post,
        settings: Flower,
        with_sizes: bool,
        known: Roster | None = None,
        on_roster: Callable[[Roster], None] | None = None,
        closed: bool = False,
        caps: Caps | None = None,
        unseen: tuple[float, int] | None = None,
        classes: int | None = None,
    ) -> None:
        self._post, self._settings, self._with_sizes = post, settings, with_sizes
        self._roster, self._on_roster, self._closed = known, on_roster, closed
        self._greeted: Sent = {}
        self._refused: set[int] = set()
        self._silent: dict[int, str] = {}
        self.absent = ""
        self._present: dict[int, Hello] = {}
        self._called: dict[int, str] = {}
        self._keys: dict[int, str] = {}
        self._caps, self._unseen, self._classes = caps or Caps(), unseen, classes
        if settings.names_by_key:
            self._caps.check_keys()
        self._looked = -OFTEN

    @property
    def roster(self) -> Roster:
        """The current roster."""
        assert self._roster is not None, "gather first"
        return self._roster

    def gather(self) -> Roster:
        """Wait for nodes according to the settings, and return the roster of their clients.

        The wait for the minimum number of nodes starts again whenever a node connects.
        """
        settings, begun = self._settings, time.monotonic()
        log(INFO, "waiting up to %g s for %d nodes", settings.wait, settings.nodes)
        here, last = self._holders, begun
        while here + len(self._refused) < settings.nodes:  # until all nodes have reported their clients or an error
            if time.monotonic() >= settings.wait + (last if here < settings.min_nodes else begun):
                break
            self._greet()
            time.sleep(POLL)
            if self._holders != here:
                here, last = self._holders, time.monotonic()
        self._agree()
        here = self._holders
        if here < settings.min_nodes:
            raise TooFewRepliesError(
                f"{here} nodes with usable data connected within {settings.wait:g} s, {settings.min_nodes} are needed"
                f"{self._missing()}: start more SuperNodes, raise flower.wait, or lower flower.min_nodes"
            )
        self._enroll()
        log(INFO, "%d nodes hold %s", here, self.roster)
        self.absent = "" if here >= settings.nodes else f"{here} of {settings.nodes} nodes are here{self._missing()}"
        if self.absent:
            log(WARNING, "missing: %s", self.absent)
        if self._caps.client_share != 1.0:
            for node, hello in self._present.items():
                if (count := len(hello.names)) > 1:
                    log(
                        WARNING, "%s holds %d clients, and its operator speaks for all of them", self.label(node), count
                    )
            if here < FEW:
                log(WARNING, "of %d nodes any may decide the model: no weight is capped with fewer than %d", here, FEW)
        return self.roster

    def _missing(self) -> str:
        """Describe the study's clients without a node, and the nodes that did not report their clients."""
        homes = self.homes()
        clients = [name for name in _everyone(self._roster) if name not in homes]
        nodes = [f"{self.label(node)}: {why}" for node, why in sorted(self._silent.items())]
        return (f"; no node holds {some(clients)}" if clients else "") + (f"; {some(nodes)}" if nodes else "")

    def look(self) -> None:
        """Greet nodes that have connected, read their replies, and forget nodes that have left, without waiting.

        The SuperLink is asked at most every ``OFTEN`` seconds.
        """
        if time.monotonic() < self._looked + OFTEN:
            return
        self._looked = time.monotonic()
        self._greet()
        self._enroll()

    def label(self, node: int) -> str:
        """Return a node's name in the log: its ID, and its operator's name for it."""
        called = self._called.get(node)
        return f"node {node} ({called})" if called else f"node {node}"

    def nodes(self) -> dict[int, tuple[str, list[str]]]:
        """Return the name and the clients of each node that currently takes part."""
        return {node: (self._called.get(node, ""), list(hello.names)) for node, hello in self._present.items()}

    def doubt(self, node: int) -> None:
        """Stop sending queries to a node that did not reply, until it replies to a greeting."""
        self._present.pop(node, None)

    def homes(self) -> dict[str, int]:
        """Return the node of each reachable client.

        If there are several, the first that connected with the client's key.
        """
        homes: dict[str, int] = {}
        for node, hello in self._present.items():
            for name in hello.names:
                if self._may_hold(node, name):
                    homes.setdefault(name, node)
        return homes

    def tested(self) -> set[str]:
        """Return the reachable clients with test examples."""
        return {name for name, node in self.homes().items() if name in self._present[node].tested}

    @property
    def _holders(self) -> int:
        """The number of nodes with clients."""
        return len(set(self.homes().values()))

    def _may_hold(self, node: int, name: str) -> bool:
        owner = None if self._roster is None else self._roster.owners.get(name)
        return owner is None or not self._settings.names_by_key or owner == self._keys.get(node)

    def _greet(self) -> None:
        self._keys = self._post.nodes()
        here = set(self._keys)
        self._refused &= here  # a node that reconnects may have been repaired
        self._silent = {node: why for node, why in self._silent.items() if node in here}
        for node in [node for node in self._present if node not in here]:
            log(WARNING, "%s has left, and with it %s", self.label(node), some(self._present.pop(node).names))
        waiting = sorted(here - self._present.keys() - self._refused - set(self._greeted.values()))
        fresh = set(waiting[: max(0, self._post.at_once - len(self._greeted))])
        if fresh:
            hello = config_only("query", sizes=self._with_sizes)
            lasts = max(self._settings.wait, self._settings.round_timeout)  # a late node starts while the others train
            self._greeted |= self._post.send("query.hello", dict.fromkeys(fresh, hello), lasts)
            self._silent |= dict.fromkeys(fresh - self._silent.keys(), "no reply yet")
        for message, reply in self._post.pull(self._greeted).items():
            node = self._greeted.pop(message)
            try:
                if isinstance(reply, str):
                    raise WireError(reply)
                hello = self._within_caps(node, Hello.decode(reply, self._with_sizes))
                self._check(node, hello)
                self._present[node], self._called[node] = hello, hello.node
                if hello.privacy:
                    log(WARNING, PRIVATE, self.label(node), hello.privacy)
                if hello.small:
                    log(WARNING, SMALL, self.label(node), some(hello.small))
                self._silent.pop(node, None)
            except WireError as error:
                self._silent[node] = str(error)
                # A node that could not reply may have been cut off. It is greeted again when it reconnects.
                if isinstance(reply, str):
                    log(INFO, "%s did not reply: %s", self.label(node), error)
                else:
                    self._called[node] = signature(reply)
                    self._refuse(node, error)
        self._greeted = {message: node for message, node in self._greeted.items() if node in here}

    def _refuse(self, node: int, why: WireError) -> None:
        self._refused.add(node)
        log(WARNING, "%s takes no part: %s", self.label(node), why)

    def _within_caps(self, node: int, hello: Hello) -> Hello:
        """Return the node without clients that claim too many examples.

        Raise an error if the node itself claims too much.
        """
        caps = self._caps
        fault = (
            self._fault_of_classes(hello.outputs)
            or caps.fault_of_node(len(self._names_of(node, hello)), self._keys.get(node, ""))
            or caps.fault_of_count("classes", hello.outputs)
            or caps.fault_of_shape(hello.shape)
        )
        if fault is not None:
            raise WireError(f"it {fault}")
        faults = too_many(caps, "examples", hello.names, hello.sizes or [0] * len(hello.names))
        for name, why in faults.items():
            log(WARNING, "%s: %s takes no part: it %s", self.label(node), name, why)
        if len(faults) == len(hello.names):
            raise WireError("none of its clients is within the caps")
        return hello.without(faults)

    def _fault_of_classes(self, claimed: int) -> str | None:
        declared = self._classes
        if declared is None or claimed == declared:
            return None
        return f"has {claimed} classes, and the experiment declares {declared} (num_classes of [data])"

    def _names_of(self, node: int, hello: Hello) -> set[str]:
        """Return the clients of a node, and all clients that nodes with the same key have brought, now or before."""
        key, names = self._keys.get(node), set(hello.names)
        if key:
            owners = {} if self._roster is None else self._roster.owners
            names |= {name for name, owner in owners.items() if owner == key}
            names = names.union(*(each.names for other, each in self._present.items() if self._keys.get(other) == key))
        return names

    def _check(self, node: int, hello: Hello) -> None:
        """Raise if examples differ in kind from the roster's, or if all clients belong to another key; log others'."""
        roster, homes = self._roster, self.homes()
        if roster is not None:
            if hello.outputs != roster.num_outputs:
                raise WireError(
                    f"it has {hello.outputs} classes or targets, the model {roster.num_outputs} outputs: if it lacks "
                    f"examples of a class, write num_classes = {roster.num_outputs} into [data] of the experiment"
                )
            _check_kind(hello, (roster.input_shape, roster.unit, roster.bounds, roster.num_classes is not None))
        foreign = tuple(name for name in hello.names if not self._may_hold(node, name))
        if len(foreign) == len(hello.names):
            raise WireError(
                f"{some(foreign)} belong to the key of another node: start that node with its own key; in a trial "
                "without keys, set flower.names_by_key=false"
            )
        taken = [name for name in hello.names if name in foreign or name in homes]
        if taken:
            what = "%s claims %s, which another node holds: it is not asked about them"
            log(WARNING, what, self.label(node), some(taken))

    def _agree(self) -> None:
        """Select, before there is a roster, the nodes with the most common kind of examples.

        The first kind wins ties.
        """
        if self._roster is not None or not self._present:
            return
        common = Counter(hello.kind for hello in self._present.values()).most_common(1)[0][0]
        for node, hello in list(self._present.items()):
            try:
                _check_kind(hello, common)
            except WireError as error:
                del self._present[node]
                self._silent[node] = str(error)
                self._refuse(node, error)
        claims = {self.label(node): hello.outputs for node, hello in self._present.items()}
        if len(set(claims.values())) > 1:
            raise ConfigError(
                f"nodes have different numbers of classes ({some([f'{who}: {count}' for who, count in claims.items()])}"
                f"): write the right one into the experiment, such as num_classes = {max(claims.values())} in [data]"
            )

    def _enroll(self) -> None:
        """Add new clients to the end of the roster."""
        known, homes = self._roster, self.homes()
        names = _everyone(known)
        newcomers = list[tuple[int, str, int, str]]()
        for name, node in homes.items():
            if name not in names:
                hello = self._present[node]
                index = hello.names.index(name)
                number = -1 if hello.numbers is None else hello.numbers[index]
                key = self._keys.get(node, "")
                size = 0 if hello.sizes is None else self._caps.size_of(name, key) or hello.sizes[index]
                newcomers.append((number, name, size, key or str(node)))
        if not newcomers or (known is not None and self._closed):
            return
        _, fresh, sizes, nodes = zip(*sorted(newcomers), strict=True)
        if known is not None:
            log(INFO, "new clients: %s", some(fresh))
            before = known.nodes or tuple(known.owners.get(name, name) for name in known.names)
            roster = replace(
                known, names=known.names + fresh, num_examples=known.num_examples + sizes, nodes=before + nodes
            )
        else:
            hellos = list(self._present.values())
            first, classes = hellos[0], max(hello.classes for hello in hellos)
            seen, unseen = (list(range(len(fresh))), []) if self._unseen is None else _drawn(len(fresh), *self._unseen)
            roster = Roster(
                tuple(fresh[index] for index in seen),
                tuple(sizes[index] for index in seen),
                first.shape,
                max(hello.outputs for hello in hellos),
                classes or None,
                first.unit,
                first.bounds,
                intake=Intake(common_labels(hellos, classes)),
                unseen=tuple(fresh[index] for index in unseen),
                nodes=tuple(nodes[index] for index in seen),
            )
            if roster.unseen:
                log(INFO, "never train: %s", some(roster.unseen))
        names = _everyone(roster)
        keys = {name: self._keys.get(node) for name, node in homes.items() if name in names}
        fresh_owners = {name: key for name, key in keys.items() if key and name not in roster.owners}
        roster = replace(roster, owners={**roster.owners, **fresh_owners})
        roster = replace(roster, capped=capped(self._caps, roster, roster.num_examples))
        for name in roster.capped:
            log(WARNING, "%s claims a larger share of all examples than a client may have: it counts for less", name)
        if self._on_roster is not None:
            self._on_roster(roster)
        self._roster = roster


def _everyone(roster: Roster | None) -> tuple[str, ...]:
    """Return all known clients; clients that take no part in training come last."""
    return () if roster is None else roster.names + roster.unseen


def _drawn(total: int, share: float, seed: int) -> tuple[list[int], list[int]]:
    try:
        return draw_unseen(total, share, seed)
    except ValueError as error:
        raise ConfigError(f"data.unseen = {share}: {error}") from error


def common_labels(hellos: Sequence[Hello], classes: int) -> tuple[str, ...] | None:
    """Return the names of the classes if most nodes send them, no node sends others, and every class has a name."""
    named = Counter(hello.labels for hello in hellos if hello.labels)
    if len(named) > 1:
        log(WARNING, "nodes name their classes differently, so the classes go without names: %s", str(sorted(named)))
    labels, count = named.most_common(1)[0] if len(named) == 1 else ((), 0)
    return labels if len(labels) == classes and 2 * count > len(hellos) else None


def _check_kind(hello: Hello, agreed: tuple[Any, ...]) -> None:
    """Raise an error if a node's examples do not have the agreed shape, unit and classes."""
    for name, value, common in zip(("shape", "unit", "bounds", "classification"), hello.kind, agreed, strict=True):
        if value != common:
            raise WireError(f"its examples have {name} {value}, examples of other nodes {common}: all nodes must agree")
