"""How gamma is learned from a radius: one step of the dual per round."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from wafl.objectives.ball.order_one import FIRST_EXCESS, FIRST_PACE, next_excess
from wafl.objectives.base import Learner
from wafl.tasks.problem import Problem

AUTO = "auto"
"""The radius is chosen by :func:`wafl.fit`, on clients that are left out."""
FIRST_BALL = 0.1
"""The part of the radius that training by radius starts with."""
LONGEST_WARM_UP = 30
"""How many rounds the ball takes at most to grow to the radius that was asked for."""


@dataclass(frozen=True)
class GammaLearner(Learner):
    """Learns gamma from a radius, in a ball that first grows.

    In an endless ball, gamma is the slope of the loss plus an excess that pays for labels (``order_one.py``).
    """

    radius: float | Literal["auto"]
    power: int
    lowest: Callable[[Problem], float]
    endless: bool
    averages_cost: bool
    server_side = frozenset({"strict"})

    @property
    def undecided(self) -> bool:
        return self.radius == AUTO

    @property
    def target(self) -> float:
        """The radius as a number; an error if it is still to be chosen."""
        if isinstance(self.radius, str):
            raise ValueError("radius='auto' is chosen by wafl.fit, wafl.sweep and wafl run: give a number here")
        return self.radius

    def scalars(self) -> dict[str, float]:
        """Return the scalars of the objective besides gamma."""
        return {"radius": self.target, **({"excess": FIRST_EXCESS, "pace": FIRST_PACE} if self.averages_cost else {})}

    def warm_up(self, rounds: int) -> int:
        """Return over how many of so many rounds the ball grows."""
        return min(LONGEST_WARM_UP, rounds // 3)

    def lowest_gamma(self, problem: Problem) -> float:
        return self.lowest(problem)

    def first_scalars(self, scalars: Mapping[str, float], lowest: float, rounds: int) -> dict[str, float]:
        ball = FIRST_BALL if self.warm_up(rounds) else 1.0
        gamma = lowest + scalars.get("excess", 0.0) if self.endless else max(scalars["gamma"], lowest)
        return {**scalars, "gamma": gamma, "radius": ball * scalars["radius"]}

    def next_scalars(self, scalars: Mapping[str, float], cost: float, lowest: float, rounds: int) -> dict[str, float]:
        now = grown = scalars["radius"]
        if now < self.target:
            grown = min(now * FIRST_BALL ** (-1.0 / self.warm_up(rounds)), self.target)
        if self.endless:
            if "excess" not in scalars:
                return {**scalars, "gamma": lowest, "radius": grown}
            excess, pace = next_excess(scalars["excess"], scalars["pace"], lowest, cost, now)
            return {**scalars, "gamma": lowest + excess, "radius": grown, "excess": excess, "pace": pace}
        gamma = self.next_gamma(scalars["gamma"], cost, now)
        gamma *= now / grown if self.power == 2 else 1.0
        return {**scalars, "gamma": max(gamma, lowest), "radius": grown}

    def next_gamma(self, gamma: float, cost: float, radius: float) -> float:
        """One step of the dual: gamma falls while the achieved radius is too small and rises while it is too large.

        The dual's derivative in gamma is ``radius^p - cost``. Far above the limit the achieved radius is proportional
        to ``1 / gamma`` (power 2), so Newton's step in ``log gamma`` is ``log(achieved / radius)``. Upward it is taken
        whole, and downward by half, because a cohort is a sample; but at least down to where half the radius should be
        achieved. Gamma at most doubles.
        """
        ratio = cost ** (1.0 / self.power) / radius
        if self.power == 1:  # as gamma falls, one example after another leaves: there is no proportion to go by
            return gamma * min(max(math.sqrt(ratio), 0.5), 2.0)
        if ratio == 0.0:  # a flat model does not move, at any gamma
            return gamma
        return gamma * min(max(ratio, math.sqrt(ratio)), 2.0 * ratio, 2.0)
