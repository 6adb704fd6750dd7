"""Learn gamma from a radius, by one step of the dual per round."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from wafl.tasks.problem import Problem

AUTO = "auto"
"""The value of ``radius`` with which :func:`wafl.fit` chooses the radius on held-out clients."""
FIRST_BALL = 0.1
"""The fraction of the radius with which training starts."""
LONGEST_WARM_UP = 30
"""The maximum number of rounds in which the ball grows to the requested radius."""


FIRST_EXCESS, FIRST_PACE = 1.0, -1.0
LEAST_EXCESS = 1e-4
"""An excess below this fraction of L becomes 0; an excess that is needed again starts from it."""
LEAST_PACE, MOST_PACE = 0.05, 1.0


def next_excess(excess: float, pace: float, slope: float, cost: float, radius: float) -> tuple[float, float]:
    """Return the next excess and the pace of its change, given the labels' mean cost in a ball of this radius.

    The logarithm of the excess changes by the pace times the relative difference between the cost and the radius. The
    pace is halved whenever the excess changes direction, and grows by a fifth otherwise. Its sign is the sign of the
    last change. ``slope`` is the L of the new model, 0 if it is unknown.
    """
    least = LEAST_EXCESS * (slope or 1.0)
    above = min(1.0, max(-1.0, cost / radius - 1.0))
    if above == 0.0:
        return excess, pace
    turns = (above > 0.0) != (pace > 0.0)
    size = min(max(abs(pace) * (0.5 if turns else 1.2), LEAST_PACE), MOST_PACE)
    changed = max(excess, least) * math.exp(size * above)
    return (changed if changed > least else 0.0), math.copysign(size, above)


@dataclass(frozen=True)
class GammaLearner:
    """A rule that learns gamma from a radius, in a ball that grows at first.

    In an unbounded ball, gamma is the slope of the loss plus an excess that pays for labels (``ball/order_one.py``).
    """

    radius: float | Literal["auto"]
    power: int
    lowest_gamma: Callable[[Problem], float]
    """The lower limit of gamma for the model of the first lane."""
    endless: bool
    """Whether the ball contains distributions with a little mass at any distance."""
    averages_cost: bool
    """Whether clients report the mean cost of all local steps instead of the cost of the first step."""
    server_side = frozenset({"strict"})
    """The names of the objective's options that only the server uses; lanes may differ in them."""

    @property
    def undecided(self) -> bool:
        """Whether the radius still has to be chosen, on held-out clients."""
        return self.radius == AUTO

    @property
    def target(self) -> float:
        """The radius as a number; an error if it still has to be chosen."""
        if isinstance(self.radius, str):
            raise ValueError("radius='auto' is chosen by wafl.fit, wafl.sweep and wafl run: give a number here")
        return self.radius

    def scalars(self) -> dict[str, float]:
        """Return the scalars of the objective besides gamma."""
        return {"radius": self.target, **({"excess": FIRST_EXCESS, "pace": FIRST_PACE} if self.averages_cost else {})}

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return the range of each scalar that may change from round to round."""
        endless = 0.0, math.inf
        radius = endless if self.undecided else (FIRST_BALL * self.target, self.target)
        return {"gamma": endless, "radius": radius, "excess": endless, "pace": (-MOST_PACE, MOST_PACE)}

    def warm_up(self, rounds: int) -> int:
        """Return the number of rounds, of ``rounds``, in which the ball grows."""
        return min(LONGEST_WARM_UP, rounds // 3)

    def first_scalars(self, scalars: Mapping[str, float], lowest: float, rounds: int) -> dict[str, float]:
        """Return the scalars of the first round; ``lowest`` is the :attr:`lowest_gamma` of the first model."""
        ball = FIRST_BALL if self.warm_up(rounds) else 1.0
        gamma = lowest + scalars.get("excess", 0.0) if self.endless else max(scalars["gamma"], lowest)
        return {**scalars, "gamma": gamma, "radius": ball * scalars["radius"]}

    def next_scalars(self, scalars: Mapping[str, float], cost: float, lowest: float, rounds: int) -> dict[str, float]:
        """Return the scalars after a round whose moves cost ``cost`` on average."""
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
        """Take one step of the dual: gamma falls while the achieved radius is too small, and rises otherwise.

        The dual's derivative in gamma is ``radius^p - cost``. Far above the limit the achieved radius is proportional
        to ``1 / gamma`` (power 2), so Newton's step in ``log gamma`` is ``log(achieved / radius)``. Steps upward are
        taken in full, and steps downward by half, because a cohort is a sample. But a step downward reaches at least
        the gamma that should achieve half the radius. Gamma at most doubles.
        """
        ratio = cost ** (1.0 / self.power) / radius
        if self.power == 1:  # as gamma falls, one example after another leaves: there is no proportion to go by
            return gamma * min(max(math.sqrt(ratio), 0.5), 2.0)
        if ratio == 0.0:  # a flat model does not move, at any gamma
            return gamma
        return gamma * min(max(ratio, math.sqrt(ratio)), 2.0 * ratio, 2.0)
