"""Define a node's greeting: facts about the node and its clients."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from flwr.app import RecordDict

from wafl.flower.node.refusals import LONGEST_NAME, check_refusal
from wafl.flower.wire.values import LARGEST, Reader, WireError, config_only, short

LONGEST_CLIENT = 200
"""The maximum length of the name of a client or a class."""


@dataclass(frozen=True)
class Hello:
    """A node's greeting. ``classes`` is 0 for regression, and sizes are sent only if the server asks for them."""

    names: tuple[str, ...]
    numbers: tuple[int, ...] | None
    sizes: tuple[int, ...] | None
    tested: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int
    outputs: int
    unit: str
    bounds: tuple[float, float] | None
    node: str = ""
    """The operator's name of the node."""
    labels: tuple[str, ...] = ()
    """The names of the classes, if they have any."""
    small: tuple[str, ...] = ()
    """The clients that have too few examples to take part."""
    privacy: str = ""
    """The noise of a private node, in words."""

    def encode(self) -> RecordDict:
        """Return the message."""
        return config_only("reply", **{**vars(self), "node": self.node or None, "privacy": self.privacy or None})

    @classmethod
    def decode(cls, content: RecordDict, with_sizes: bool) -> Self:
        """Return the greeting in a message; raise WireError if it is not valid."""
        check_refusal(content)
        read = Reader(content, "reply")
        names = read.different("names")
        if not names:
            raise WireError("names is empty: a node must have at least one client")
        check_names("names", "client", names)
        bounds = read.many("bounds", float, 2) if read.has("bounds") else None
        shape = tuple(read.many("shape", int, None, 1, LARGEST))
        numbers = read.many("numbers", int, len(names), 0, LARGEST) if read.has("numbers") else None
        classes, outputs = read.one("classes", int, 0, 10**9), read.one("outputs", int, 1, 10**9)
        labels = read.many("labels", str, classes if read.has("labels") else None)
        check_names("labels", "class", labels)
        if not shape:
            raise WireError("shape is empty: an example must have at least one dimension")
        if bounds is not None and not bounds[0] < bounds[1]:
            raise WireError(f"bounds={bounds} must be (low, high) with low < high")
        if classes not in (0, outputs):
            raise WireError(f"classes={classes} must equal outputs={outputs}, or be 0 for regression")
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
            read.one("node", str)[:LONGEST_NAME] if read.has("node") else "",
            tuple(labels),
            tuple(name[:LONGEST_CLIENT] for name in read.different("small")),
            read.one("privacy", str)[:200] if read.has("privacy") else "",
        )

    @property
    def kind(self) -> tuple[tuple[int, ...], str, tuple[float, float] | None, bool]:
        """The properties that the examples of all nodes must share."""
        return self.shape, self.unit, self.bounds, self.classes > 0

    def without(self, names: Collection[str]) -> Self:
        """Return the greeting without these clients."""
        indices = [index for index, name in enumerate(self.names) if name not in names]
        return replace(
            self,
            names=tuple(self.names[index] for index in indices),
            numbers=None if self.numbers is None else tuple(self.numbers[index] for index in indices),
            sizes=None if self.sizes is None else tuple(self.sizes[index] for index in indices),
            tested=tuple(name for name in self.tested if name not in names),
        )


def check_names(key: str, what: str, names: Collection[str]) -> None:
    """Raise WireError if a name is empty, too long or not printable."""
    for name in names:
        if not name.isprintable() or not 0 < len(name) <= LONGEST_CLIENT:
            raise WireError(f"{key} has {short(name)}: a {what} needs 1 to {LONGEST_CLIENT} printable characters")
