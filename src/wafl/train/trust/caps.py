"""Limit the claims of clients about themselves; a server excludes clients that claim more than declared."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, Self

from wafl.base.errors import ConfigError
from wafl.base.options import Count, Listed, Named, Positive, Range, check_options, frozen

MOST_FEATURES = 10**6
"""The maximum number of values in an example if its shape is not declared."""
DOUBLE = "double"
"""The share that limits a client to twice an equal share: 2/n of n clients, half of three, and any of fewer."""
Share = float | Literal["double"]
KEYED = re.compile(r"([0-9a-f]{64})(/.+)?", re.DOTALL)
"""A client by the fingerprint of its node's key and, if the node may have several clients, by its name."""


@frozen
class Caps:
    """The limits of claims by clients on other machines; a client that claims more is excluded with a warning.

    >>> Caps(examples=5000, classes=10).examples
    5000
    """

    examples: Annotated[int, Count(), "The most training examples of a client."] = 10**6
    tests: Annotated[int, Count(), "The most test examples of a client."] = 10**6
    classes: Annotated[int, Count(), "The most classes, or targets of a regression."] = 1000
    shape: Annotated[
        tuple[int, ...] | None, Listed(Count()), "The shape of an example; by default any with up to a million numbers."
    ] = None
    loss: Annotated[float, Positive(infinite=True), "The largest mean loss of a client."] = math.inf
    cost: Annotated[float, Positive(infinite=True), "The largest mean transport cost of a client."] = math.inf
    clients_per_node: Annotated[
        int | None, Count(), "The most clients of one node; by default 1 on other machines, and 1000 in a simulation."
    ] = None
    node_clients: Annotated[
        Mapping[str, int] | None,
        Named(Count()),
        "The most clients of single nodes, by the fingerprint of the node's key.",
    ] = None
    client_share: Annotated[
        Share | None,
        Range(0, 1, ": it is a share of all weights", low_open=True, word=DOUBLE),
        'The largest weight of a client, or of all clients of one node: "double" is twice an equal share, which is the '
        "default on other machines; 1, the default elsewhere, caps none, and weights of your own are not capped. The "
        "update of a client with more than an equal share is shortened earlier, in proportion (tolerance.clip).",
    ] = None
    sizes: Annotated[
        Mapping[str, int] | None,
        Named(Count()),
        "Known numbers of training examples of clients, by name, or on other machines by the fingerprint of the "
        "node's key (FINGERPRINT or FINGERPRINT/NAME): they count as you say, and are not capped.",
    ] = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))

    def settled(self, *, remote: bool) -> Self:
        """Return the caps with defaults filled in, for clients on other machines or in a simulation."""
        share, clients = (DOUBLE, 1) if remote else (1.0, 1000)
        return replace(self, client_share=self.client_share or share, clients_per_node=self.clients_per_node or clients)

    def size_of(self, name: str, key: str) -> int | None:
        """Return the declared size of a client, given its name and the fingerprint of its node's key, if it has one.

        A client is free to choose its name, so a name counts only if it does not read like a key.
        """
        sizes = self.sizes or {}
        by_key = sizes.get(key, sizes.get(f"{key}/{name}")) if key else None
        return sizes.get(name) if by_key is None and not KEYED.fullmatch(name) else by_key

    def check_keys(self) -> None:
        """Raise ConfigError unless the declared sizes belong to keys, and each to one client."""
        for client, size in (self.sizes or {}).items():
            keyed = KEYED.fullmatch(client)
            if keyed is None:
                raise ConfigError(
                    f"caps.sizes has {client!r}, but any node may call a client so: on nodes, write "
                    f'sizes = {{"FINGERPRINT" = {size}}}, or "FINGERPRINT/{client}" if the node has several clients. '
                    "`wafl flower fingerprint KEY.pub` prints it"
                )
            key, name = keyed.groups()
            if name is None and (self.node_clients or {}).get(key, self.clients_per_node or 1) > 1:
                raise ConfigError(
                    f"caps.sizes has {client!r}, whose node may have several clients: write one line for each, such as "
                    f'"{key}/NAME" = {size}'
                )

    def fault_of_node(self, clients: int, key: str) -> str | None:
        """Explain why a node with this key has too many clients, with the line that allows it, or return None."""
        most = (self.node_clients or {}).get(key, self.clients_per_node or 1)
        if clients <= most:
            return None
        setting = f'caps.node_clients = {{"{key}" = {clients}}}' if key else f"caps.clients_per_node = {clients}"
        return (
            f"claims {clients} clients, each with a vote, above {most}: if its operator may speak for all of them, "
            f"write {setting}"
        )

    def fault_of_count(self, name: str, claimed: float) -> str | None:
        """Explain why a number of examples, tests or classes is too large, or return None."""
        most, words = getattr(self, name), "test examples" if name == "tests" else name
        return None if claimed <= most else f"claims {claimed} {words}, above caps.{name} = {most}"

    def fault_of_shape(self, shape: tuple[int, ...]) -> str | None:
        """Explain why examples of this shape are rejected, or return None."""
        if self.shape is not None:
            return None if shape == self.shape else f"claims examples of shape {shape}, not caps.shape = {self.shape}"
        if math.prod(shape) > MOST_FEATURES:
            return f"claims examples of shape {shape}, with more than {MOST_FEATURES} numbers: declare caps.shape"
        return None

    def fault_of_numbers(self, loss: float, cost: float) -> str | None:
        """Explain why a finite loss and a finite transport cost are rejected, or return None."""
        if abs(loss) > self.loss:
            return f"a loss of {loss:.3g}, above caps.loss = {self.loss:g}"
        if cost < 0:
            return f"a cost of {cost:.3g}, which is negative"
        if cost > self.cost:
            return f"a cost of {cost:.3g}, above caps.cost = {self.cost:g}"
        return None
