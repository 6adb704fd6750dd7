"""Upper bounds on means by betting, straight from the formulas: every mean of a grid, every example's factor."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
HEDGE = ((0.85, 1.0), (0.05, 1.0 / 4.0), (0.05, 1.0 / 16.0), (0.05, 1.0 / 64.0))


def log_capital(x: Array, mean: float, bet: float) -> float:
    """Of one who bets that the mean is below ``mean``: the factors ``1 + lambda (mean - x)`` are 1 on average there."""
    stake = bet / (1.0 - bet * mean)
    return float(np.log(1.0 + stake * (mean - x)).sum())


def upper_mean(x: Array, most: float, bet: float, delta: float, steps: int) -> float:
    """Return the first mean of a grid that one client's hedged capital refutes."""
    for mean in np.linspace(0.0, most, steps + 1):
        if sum(share * np.exp(log_capital(x, mean, part * bet)) for share, part in HEDGE) >= 1.0 / delta:
            return float(mean)
    return most


def upper_mixture(
    xs: Sequence[Array], weights: Sequence[float], most: float, bets: Sequence[float], delta: float, steps: int
) -> float:
    """Return the largest mixture of two clients' means, on a grid, that their capitals' product does not refute."""
    grid, largest = np.linspace(0.0, most, steps + 1), 0.0
    for first in grid:
        for second in grid:
            mixed = weights[0] * first + weights[1] * second
            if mixed > largest:
                pairs = list(zip(xs, (first, second), bets, strict=True))
                capital = sum(
                    share * np.exp(sum(log_capital(x, mean, part * bet) for x, mean, bet in pairs))
                    for share, part in HEDGE
                )
                largest = mixed if capital < 1.0 / delta else largest
    return float(largest)
