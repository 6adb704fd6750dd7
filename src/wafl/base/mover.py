"""Define the common base of objectives and attacks, which move examples, with the options of each."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, cast

from wafl.base.bounds import DATA, Bounds, Box, box_of, warn_of_size
from wafl.base.checks import LONGEST_ASCENT, check_steps


class Mover:
    """The base class of everything that moves examples, with defaults for options that a subclass lacks."""

    bounds: Bounds = None
    """The limits of moved examples: ``"data"`` (the declared bounds), a box ``(low, high)``, or None."""
    space: str | None = None
    """The name of the layer whose output moves instead of the inputs."""
    cost_matrix: Any = None
    """The matrix of the cost of moves, if the ball is not round."""
    steps: int = 1
    """The maximum number of steps of an ascent."""
    restarts: int = 0
    """The number of random starts of an ascent."""
    queries: int = 0
    """The number of queries to the model per example."""

    @property
    def reach(self) -> tuple[str, float, float] | None:
        """The option that limits the move of an example, its value and its norm; None if there is none."""
        return None

    def check_unit(self, declared: Box | None, input_shape: Sequence[int], unit: str) -> None:
        """Warn if examples may move farther than the width of the declared box."""
        if self.reach is not None and self.space is None and self.cost_matrix is None:
            warn_of_size(*self.reach, declared, math.prod(input_shape), unit)

    @property
    def box(self) -> Box | None:
        """The box of the bounds without data; None if the bounds are the bounds of the data."""
        return box_of(self.bounds)

    def within(self, declared: Box | None) -> Self:
        """Return a mover for data with this declared box, which replaces ``bounds="data"``.

        The bounds do not apply to the output of a layer (``space``), and a ball with a ``cost_matrix`` has none.
        """
        if self.bounds != DATA:
            return self
        plain = self.space is None and self.cost_matrix is None
        return replace(cast(Any, self), bounds=declared if plain else None)

    def check_length(self) -> None:
        """Raise ValueError if moving one batch of examples would take too long with these options."""
        lengths = {"steps": self.steps, "restarts": self.restarts, "queries": self.queries}
        given = {name: value for name, value in lengths.items() if value > 1}
        if given:
            longest = max(given, key=lambda name: given[name])
            words = ", ".join(f"{name}={value}" for name, value in given.items())
            steps = math.prod(map(float, given.values()))
            check_steps(f"{type(self).__name__} with {words}", steps, f"lower {longest}", LONGEST_ASCENT)
