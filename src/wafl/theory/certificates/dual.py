"""Search for the best gamma, from the clients' answers at a few gammas."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wafl.base.errors import PreconditionError
from wafl.theory.certificates.mixture import Means

RUNG = 16.0
"""The ratio of neighboring gammas in the first grid, above the limit."""
BEYOND = 1.5
"""The factor by which the next gamma is below the one at which a power law predicts a cost of the squared radius."""
CLOSE = 1e-4
"""How close the mean cost must come to the squared radius; the value depends only on the square of gamma's error."""
WIDE = 2.0
"""The ratio of two gammas above which a power law between them is a poor guide."""
NEGLIGIBLE = 1e-10
"""The fraction of the value that the search may lose if the minimum is at the limit itself."""
FLOOR = 1e-40


@dataclass(frozen=True)
class Surrogate:
    """The value ``E[phi_gamma]`` and the mean cost of the moves at one gamma; the cost is minus the slope in gamma."""

    value: float
    cost: float


@dataclass(frozen=True)
class Dual:
    """The clients' answers by the excess of gamma over the limit, and the bounds that they imply for any radius."""

    limit: float
    known: Mapping[float, Surrogate]

    def least(self, radius: float) -> tuple[float, float]:
        """Return the minimum over the known gammas, and the gamma that attains it."""
        values = {excess: (self.limit + excess) * radius**2 + answer.value for excess, answer in self.known.items()}
        best = min(values, key=values.__getitem__)
        return values[best], self.limit + best

    def balanced(self, radius: float) -> list[float]:
        """Return the gamma at which a power law between two neighbors predicts a cost of ``radius^2``, if any."""
        budget = radius**2
        cheap = [excess for excess, answer in self.known.items() if 0.0 < answer.cost <= budget]
        dear = [excess for excess, answer in self.known.items() if budget < answer.cost < math.inf]
        if not cheap or not dear:
            return []
        low, high = max(dear), min(cheap)
        above, below = self.known[low].cost, self.known[high].cost
        return [self.limit + low * (high / low) ** (math.log(above / budget) / math.log(above / below))]

    def reached(self, radius: float) -> float:
        """Return the loss of a distribution inside the ball, if the answers come from moves with that mean cost.

        The distribution mixes the moves at two neighboring gammas, so that their mean cost is ``radius^2``. If no moves
        cost as much, the rest of the budget gains the limit per unit of cost. Minus infinity if no cheaper moves are
        known.
        """
        budget = radius**2
        cheap = [excess for excess, answer in self.known.items() if answer.cost <= budget]
        dear = [excess for excess, answer in self.known.items() if budget < answer.cost < math.inf]
        if not cheap:
            return -math.inf
        near = min(cheap, key=lambda excess: budget - self.known[excess].cost)
        if not dear:
            return self.loss(near) + self.limit * (budget - self.known[near].cost)
        far = min(dear, key=lambda excess: self.known[excess].cost)
        share = (budget - self.known[near].cost) / (self.known[far].cost - self.known[near].cost)
        return (1.0 - share) * self.loss(near) + share * self.loss(far)

    def loss(self, excess: float) -> float:
        """Return the mean loss of the moves at one of the known gammas."""
        answer = self.known[excess]
        return answer.value + ((self.limit + excess) * answer.cost if answer.cost > 0 else 0.0)


def search_dual(
    ask: Callable[[Sequence[float]], Means],
    radii: Sequence[float],
    limit: float,
    close: float = CLOSE,
    first: Sequence[float] = (),
) -> Dual:
    """Ask clients about a few gammas at a time, until the best gamma for each radius is known.

    Every answer is used for every radius. The derivative in gamma is ``radius^2 - cost``, so the search is for the
    gamma at which the cost is the squared radius; ``close`` is how close it must come. It starts with the gammas
    ``first`` if there are any, else with a wide grid.

    >>> dual = search_dual(lambda gammas: Means([1 / g for g in gammas], [g**-2 for g in gammas]), [2.0], 0.0, 1e-8)
    >>> [round(number, 6) for number in dual.least(2.0)]
    [4.0, 0.5]
    """
    known: dict[float, Surrogate] = {}
    dual = Dual(limit, known)

    def learn(excesses: Sequence[float]) -> None:
        fresh = sorted({excess for excess in excesses if excess not in known})
        means = ask([limit + excess for excess in fresh])
        known.update(zip(fresh, map(_usable, means.value, means.cost), strict=True))

    scale = limit if limit > 0 else 1.0
    learn([gamma - limit for gamma in first] or [scale * RUNG**rung for rung in range(-3, 4)])
    for turn in range(200):
        wanted = {radius: _next(dual, radius, turn, close) for radius in radii if radius > 0}
        excesses = [excess for excess in wanted.values() if excess is not None]
        if not excesses:
            break
        learn(excesses)
    return dual


def _usable(value: float, cost: float) -> Surrogate:
    """Return the answer, infinite if it is NaN, so that nothing is proven there."""
    return Surrogate(math.inf, math.inf) if math.isnan(value + cost) else Surrogate(value, cost)


def _next(dual: Dual, radius: float, turn: int, close: float) -> float | None:
    """Return the next excess to query, or None if no gain remains.

    Raises PreconditionError if every gamma in the range of float64 has an infinite cost.
    """
    known, limit, budget = dual.known, dual.limit, radius**2
    dear = [excess for excess, answer in known.items() if answer.cost > budget]
    cheap = [excess for excess, answer in known.items() if answer.cost <= budget]
    if not cheap:
        higher = max(dear) * RUNG
        if math.isinf(limit + higher):
            raise PreconditionError(
                "no gamma gives a finite bound: the model's outputs are so large that float64 overflows; use a model "
                "of smaller weights, or smaller inputs"
            )
        return higher
    if not dear:
        lowest = min(cheap)
        value = abs((limit + lowest) * budget + known[lowest].value)
        # phi only increases as gamma decreases, so no smaller gamma gains more than this.
        if lowest * budget <= NEGLIGIBLE * value or lowest <= FLOOR:
            return None
        return lowest * max(_power_law(dual, budget) / BEYOND, 1.0 / RUNG)
    low, high = max(dear), min(cheap)
    above, below = known[low].cost, known[high].cost
    least, reached = dual.least(radius)[0], dual.reached(radius)
    if high <= low * (1.0 + close) or below >= budget * (1.0 - close) or least - reached <= NEGLIGIBLE * abs(least):
        return None
    # Try where a power law through both ends comes close to the budget: the cost almost follows one. Where it does not,
    # halves every now and then end the search, and between close ends their tangents, which meet at an error's kink.
    wide = high > WIDE * low
    way, turned = 0.5, turn % 2 == 1 if wide else turn % 4 == 3
    if math.isfinite(above) and below > 0 and not (turned and wide):
        meet = (dual.loss(low) - dual.loss(high)) / (above - below) - limit
        aim = budget * (1.0 - close / 2.0)  # below the budget, where the search may end
        power = math.log(above / aim) / math.log(above / below)
        way = math.log(max(meet / low, 1.0)) / math.log(high / low) if turned else power
    return low * (high / low) ** min(max(way, 1e-3), 1.0 - 1e-3)


def _power_law(dual: Dual, budget: float) -> float:
    """Return the ratio of the next gamma to the smallest one, by a power law that spends the budget; 0 if none fits."""
    (low, most), (high, less) = sorted((excess, answer.cost) for excess, answer in dual.known.items())[:2]
    if not 0.0 < less < most:
        return 0.0
    return (most / budget) ** (math.log(high / low) / math.log(most / less))
