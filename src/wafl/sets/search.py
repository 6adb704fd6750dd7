"""Search for a threshold with all clients' examples available, and for the gamma of a shift.

Counts after a shift are upper bounds. A threshold that is high enough for upper bounds is at least as high as the
threshold for the exact counts, whether the bounds fall with the threshold or not.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from wafl.base.describe import rounded
from wafl.base.errors import PreconditionError
from wafl.data.federation import Federation
from wafl.sets.answers import Client, Scorer
from wafl.sets.held_out import read_clients
from wafl.sets.shifted import Shift
from wafl.sets.thresholds import Holds, smallest
from wafl.theory.population.levels import exact

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""The shares of the allowed misses that ``gamma radius^power`` may spend."""
FEW = 200
"""The maximum number of examples of each training client for the choice of gamma."""
HALVINGS, FEW_HALVINGS = 24, 8
"""The number of halvings of a threshold's interval after a shift: for the threshold, and for gamma."""
DOUBLINGS = 60
"""The maximum number of doublings of the step to a higher threshold."""


def search(clients: Sequence[Client], shift: Shift | None, holds: Holds, halvings: int = HALVINGS) -> float:
    """Return the smallest threshold that is high enough: one of the scores or, after a shift, near the smallest."""

    def is_high_enough(threshold: float) -> bool:
        return holds([(client.size, client.above(threshold, shift)) for client in clients])

    scores = np.unique(np.concatenate([client.scores for client in clients]))
    scores = scores[np.isfinite(scores)]
    if shift is None or not len(scores):
        return smallest(scores.tolist(), lambda index: is_high_enough(float(scores[index])))
    low, high = float(scores[0]), float(scores[-1])
    step = max(high - low, abs(high), 1e-6) / 16.0
    for _ in range(DOUBLINGS):
        if is_high_enough(high):
            break
        low, high, step = high, high + step, 2.0 * step
    else:
        return math.inf
    for _ in range(halvings):
        middle = (low + high) / 2.0
        low, high = (low, middle) if is_high_enough(middle) else (middle, high)
    return high


def with_gamma(shift: Shift, scorer: Scorer, training: Federation | None, coverage: float, invited: int) -> Shift:
    """Return the shift with the gamma that has the lowest threshold on the training clients."""
    if training is None:
        raise PreconditionError(
            "about='example' with a radius needs training=, the clients that trained, on which gamma is chosen"
        )
    allowed = float(1 - exact(coverage)) - 1.0 / (invited + 1)
    if allowed <= 0.0:
        raise PreconditionError(
            f"coverage={coverage:g} of the next example after a shift needs more than {invited} clients: the coverage "
            f"must be below {invited}/{invited + 1}"
        )
    clients = list(read_clients(scorer, training, shift.norm, FEW).values())

    def lowest(share: float) -> tuple[float, float]:
        gamma = rounded(share * allowed / shift.radius**shift.power, 6)
        most = allowed * (1.0 - share) * (invited + 1) / invited
        priced = replace(shift, gamma=gamma)
        return search(clients, priced, lambda above: fmean(n / size for size, n in above) <= most, FEW_HALVINGS), gamma

    return replace(shift, gamma=min(map(lowest, SHARES))[1])
