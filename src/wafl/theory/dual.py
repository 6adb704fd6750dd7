"""The least of ``gamma radius^2 + E[phi_gamma]`` over gamma, for many radii at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RUNG = 16.0
"""The first grid's ratio of neighbouring gammas, above the limit."""
CLOSE = 1e-4
"""How close the mean cost must come to the squared radius; an error in gamma costs its square in the value."""
NEGLIGIBLE = 1e-10
"""How much of the value may be left on the table where the least would be at the limit itself."""
FLOOR = 1e-40


@dataclass(frozen=True)
class Surrogate:
    """``E[phi_gamma]`` and the mean cost of the moves, at one gamma: the cost is minus the slope in gamma."""

    value: float
    cost: float


def minimise_dual(
    ask: Callable[[Sequence[float]], Sequence[Surrogate]], radii: Sequence[float], limit: float, clean: float
) -> list[tuple[float, float]]:
    """For each radius the value and the gamma that attains it, over ``gamma > limit``.

    Clients are asked a few gammas at a time, and what they have answered serves every radius. The derivative in gamma
    is ``radius^2 - cost``, so the gamma is sought at which the cost is the squared radius; ``clean``, the loss without
    any move, is the value at radius 0.

    >>> worst = minimise_dual(lambda gammas: [Surrogate(1 / g, 1 / g**2) for g in gammas], [2.0], 0.0, 0.0)
    >>> [round(number, 6) for number in worst[0]]
    [4.0, 0.5]
    """
    known: dict[float, Surrogate] = {}
    """What clients have answered, by the excess of gamma over the limit."""

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
    """The excess to ask for next; None where nothing is to be gained any more."""
    budget = radius**2
    dear = [excess for excess, found in known.items() if found.cost > budget]
    cheap = [excess for excess, found in known.items() if found.cost <= budget]
    if not cheap:
        return max(dear) * RUNG
    if not dear:
        lowest = min(cheap)
        value = abs((limit + lowest) * budget + known[lowest].value)
        # phi only rises as gamma falls, so no smaller gamma gains more than this.
        return None if lowest * budget <= NEGLIGIBLE * value or lowest <= FLOOR else lowest / RUNG
    low, high = max(dear), min(cheap)
    above, below = known[low].cost, known[high].cost
    if high <= low * (1.0 + CLOSE) or below >= budget * (1.0 - CLOSE):
        return None
    # Every other time where a power law through both ends would cost the budget; what moves cost nearly is one.
    way = 0.5
    if turn % 2 == 0 and math.isfinite(above) and below > 0:
        way = min(max(math.log(above / budget) / math.log(above / below), 1e-3), 1.0 - 1e-3)
    return low * (high / low) ** way


def _least(known: dict[float, Surrogate], radius: float, limit: float) -> tuple[float, float]:
    values = {excess: (limit + excess) * radius**2 + found.value for excess, found in known.items()}
    best = min(values, key=values.__getitem__)
    return values[best], limit + best
