"""What everything that moves examples has in common: objectives and attacks, each with the options it needs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, cast

from wafl.base.bounds import DATA, Bounds, Box, box_of, warn_of_size
from wafl.base.checks import LONGEST_ASCENT, check_steps


class Mover:
    """Something that moves examples: the options it may have, with the values that stand for an option it lacks."""

    bounds: Bounds = None
    """Where moved examples must stay: ``"data"`` (what the data declare), a box ``(low, high)``, or None."""
    space: str | None = None
    """The name of the layer whose output is meant instead of the inputs."""
    cost_matrix: Any = None
    """Which moves are cheap, if the ball is not round."""
    steps: int = 1
    """The most steps of an ascent."""
    restarts: int = 0
    """Random starts of an ascent."""
    queries: int = 0
    """How often the model may be asked per example."""

    @property
    def reach(self) -> tuple[str, float, float] | None:
        """The option that says how far an example may move, its value and its norm; None if there is none."""
        return None

    def check_unit(self, declared: Box | None, input_shape: Sequence[int], unit: str) -> None:
        """Warn if examples may move farther than data that declare this box are wide."""
        if self.reach is not None and self.space is None and self.cost_matrix is None:
            warn_of_size(*self.reach, declared, math.prod(input_shape), unit)

    @property
    def box(self) -> Box | None:
        """The box that the bounds stand for without data: None if they are those of the data."""
        return box_of(self.bounds)

    def within(self, declared: Box | None) -> Self:
        """What moves examples of data that declare this box, which ``bounds="data"`` stands for.

        At the output of a layer (``space``) these bounds mean nothing, and a ball with a ``cost_matrix`` has none.
        """
        if self.bounds != DATA:
            return self
        plain = self.space is None and self.cost_matrix is None
        return replace(cast(Any, self), bounds=declared if plain else None)

    def check_length(self) -> None:
        """Refuse options with which moving one batch of examples would take too long."""
        lengths = {"steps": self.steps, "restarts": self.restarts, "queries": self.queries}
        given = {name: value for name, value in lengths.items() if value > 1}
        if given:
            longest = max(given, key=lambda name: given[name])
            words = ", ".join(f"{name}={value}" for name, value in given.items())
            steps = math.prod(map(float, given.values()))
            check_steps(f"{type(self).__name__} with {words}", steps, f"lower {longest}", LONGEST_ASCENT)
