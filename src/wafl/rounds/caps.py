"""What a client may claim about itself: an experiment declares it, and a server leaves out whoever claims more."""

from __future__ import annotations

import math
from typing import Annotated

from wafl.base.options import Count, Listed, Positive, check_options, frozen

MOST_FEATURES = 10**6
"""The most numbers in an example if its shape is not declared."""


@frozen
class Caps:
    """The most that clients on other machines may claim; one that claims more is left out, with its name and a warning.

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
    clients_per_node: Annotated[int, Count(), "The most clients of one node."] = 1000

    def __post_init__(self) -> None:
        check_options(self)
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))

    def fault_of_count(self, name: str, claimed: float) -> str | None:
        """Why a number of examples, tests, classes or clients of a node is too large, if it is."""
        most, words = getattr(self, name), {"tests": "test examples", "clients_per_node": "clients"}.get(name, name)
        return None if claimed <= most else f"claims {claimed} {words}, above caps.{name} = {most}"

    def fault_of_shape(self, shape: tuple[int, ...]) -> str | None:
        """Why examples of this shape are not taken, if they are not."""
        if self.shape is not None:
            return None if shape == self.shape else f"claims examples of shape {shape}, not caps.shape = {self.shape}"
        if math.prod(shape) > MOST_FEATURES:
            return f"claims examples of shape {shape}, with more than {MOST_FEATURES} numbers: declare caps.shape"
        return None

    def fault_of_numbers(self, loss: float, cost: float) -> str | None:
        """Why a loss and a transport cost, both finite, cannot be used, if they cannot."""
        if abs(loss) > self.loss:
            return f"a loss of {loss:.3g}, above caps.loss = {self.loss:g}"
        if cost < 0:
            return f"a cost of {cost:.3g}, which is negative"
        if cost > self.cost:
            return f"a cost of {cost:.3g}, above caps.cost = {self.cost:g}"
        return None
