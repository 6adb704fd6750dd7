"""The least of ``gamma radius^2 + E[phi_gamma]`` over gamma, for many radii at once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

RUNG = 4.0
"""The first grid's ratio of neighbouring gammas, above the limit."""
SPLIT = 4
"""Into how many parts each refinement cuts the two intervals beside the best gamma."""
RESOLUTION = 1e-4
"""The ratio at which refinement stops; an error of the same order in gamma costs its square in the value."""
NEGLIGIBLE = 1e-10


def minimise_dual(
    surrogate: Callable[[Sequence[float]], Sequence[float]], radii: Sequence[float], limit: float, clean: float
) -> list[tuple[float, float]]:
    """For each radius the value and the gamma that attains it, over ``gamma > limit``.

    ``surrogate(gammas)`` is ``E[phi_gamma]``, which clients are asked for a grid at a time; what they have answered
    serves every radius. It falls with gamma, towards ``clean``, the loss without any move.

    >>> worst = minimise_dual(lambda gammas: [1.0 / g for g in gammas], [2.0], 0.0, 0.0)
    >>> [round(number, 6) for number in worst[0]]
    [4.0, 0.5]
    """
    known: dict[float, float] = {}
    """What clients have answered, by the excess of gamma over the limit."""

    def ask(excesses: Sequence[float]) -> None:
        fresh = sorted({excess for excess in excesses if excess not in known and limit + excess > limit})
        if fresh:
            known.update(zip(fresh, surrogate([limit + excess for excess in fresh]), strict=True))

    def bracket(radius: float) -> tuple[float, float, float]:
        """The best excess so far and its neighbours; a neighbour that is not known yet is one rung away."""
        ordered = sorted(known)
        values = [excess * radius**2 + known[excess] for excess in ordered]
        place = min(range(len(ordered)), key=values.__getitem__)
        best = ordered[place]
        below = ordered[place - 1] if place > 0 else best / RUNG
        above = ordered[place + 1] if place + 1 < len(ordered) else best * RUNG
        if place == 0 and best * radius**2 <= NEGLIGIBLE * (abs(values[0]) + limit * radius**2):
            below = best  # phi only rises as gamma falls, so no smaller gamma gains more than this
        return below, best, above

    scale = limit if limit > 0 else 1.0
    open_radii = [radius for radius in radii if radius > 0]
    ask([scale * RUNG**rung for rung in range(-8, 9)])
    while open_radii:
        wanted: list[float] = []
        left: list[float] = []
        for radius in open_radii:
            below, best, above = bracket(radius)
            if above <= below * (1.0 + RESOLUTION) or (below == best and above <= best * (1.0 + RESOLUTION)):
                continue
            left.append(radius)
            for low, high in itertools.pairwise((below, best, above)):
                if low in known and high in known:
                    wanted += [low * (high / low) ** (part / SPLIT) for part in range(1, SPLIT)]
                else:
                    wanted += [low, high]
        before = len(known)
        ask(wanted)
        open_radii = left if len(known) > before else []
    results: list[tuple[float, float]] = []
    for radius in radii:
        if radius == 0:
            results.append((clean, math.inf))
            continue
        _, best, _ = bracket(radius)
        results.append(((limit + best) * radius**2 + known[best], limit + best))
    return results
