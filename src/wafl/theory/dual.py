"""The minimum of ``gamma radius^2 + E[phi_gamma]`` over gamma, for many radii at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RUNG = 16.0
"""The ratio of neighboring gammas in the first grid, above the limit."""
CLOSE = 1e-4
"""How close the mean cost must come to the squared radius; the value only has the square of gamma's error."""
NEGLIGIBLE = 1e-10
"""What fraction of the value may be given away if the minimum would be at the limit itself."""
FLOOR = 1e-40


@dataclass(frozen=True)
class Surrogate:
    """``E[phi_gamma]`` and the mean cost of the moves at one gamma; the cost is minus the slope in gamma."""

    value: float
    cost: float


def minimize_dual(
    ask: Callable[[Sequence[float]], Sequence[Surrogate]], radii: Sequence[float], limit: float, clean: float
) -> list[tuple[float, float]]:
    """For each radius the minimum over ``gamma > limit``, and the gamma that attains it.

    Clients are asked about a few gammas at a time, and every answer is used for every radius. The derivative in gamma
    is ``radius^2 - cost``, so the search is for the gamma at which the cost is the squared radius; ``clean``, the loss
    without any move, is the value at radius 0.

    >>> worst = minimize_dual(lambda gammas: [Surrogate(1 / g, 1 / g**2) for g in gammas], [2.0], 0.0, 0.0)
    >>> [round(number, 6) for number in worst[0]]
    [4.0, 0.5]
    """
    known: dict[float, Surrogate] = {}
    """The clients' answers, by the excess of gamma over the limit."""

    def learn(excesses: Sequence[float]) -> None:
        fresh = sorted({excess for excess in excesses if excess not in known})
        known.update(zip(fresh, ask([limit + excess for excess in fresh]), strict=True))

    scale = limit if limit > 0 else 1.0
    learn([scale * RUNG**rung for rung in range(-3, 4)])
    for turn in range(200):
        wanted = {radius: _next(known, radius, limit, turn) for radius in radii if radius > 0}
        excesses = [excess for excess in wanted.values() if excess is not None]
        if not excesses:
            break
        learn(excesses)
    return [_least(known, radius, limit) if radius > 0 else (clean, math.inf) for radius in radii]


def _next(known: dict[float, Surrogate], radius: float, limit: float, turn: int) -> float | None:
    """The excess to ask about next; None if there is nothing more to gain."""
    budget = radius**2
    dear = [excess for excess, found in known.items() if found.cost > budget]
    cheap = [excess for excess, found in known.items() if found.cost <= budget]
    if not cheap:
        return max(dear) * RUNG
    if not dear:
        lowest = min(cheap)
        value = abs((limit + lowest) * budget + known[lowest].value)
        # phi only increases as gamma decreases, so no smaller gamma gains more than this.
        return None if lowest * budget <= NEGLIGIBLE * value or lowest <= FLOOR else lowest / RUNG
    low, high = max(dear), min(cheap)
    above, below = known[low].cost, known[high].cost
    if high <= low * (1.0 + CLOSE) or below >= budget * (1.0 - CLOSE):
        return None
    # Every other time, try where a power law through both ends meets the budget: the cost almost follows one.
    way = 0.5
    if turn % 2 == 0 and math.isfinite(above) and below > 0:
        way = min(max(math.log(above / budget) / math.log(above / below), 1e-3), 1.0 - 1e-3)
    return low * (high / low) ** way


def _least(known: dict[float, Surrogate], radius: float, limit: float) -> tuple[float, float]:
    values = {excess: (limit + excess) * radius**2 + found.value for excess, found in known.items()}
    best = min(values, key=values.__getitem__)
    return values[best], limit + best
