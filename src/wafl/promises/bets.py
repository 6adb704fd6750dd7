"""Compute the checker's bounds for draws: on a mean, by betting, and on a share of clients, by ranks.

**Bets.** The numbers ``X_ik`` of client i, ``n_i`` of them and N in all, are independent draws in ``[0, B]`` with mean
``mu_i``; its weight is ``lambda_i > 0``, and its bet ``b_i`` in ``(0, 1/B)`` was chosen without them. Then the
*capital* ``prod_ik (1 - b_i X_ik) / (1 - b_i mu_i)`` is not negative and 1 in the mean, so it is ``1 / delta`` or more
with probability ``delta`` at most (Markov). Client i *pays* ``L_i``, the mean of ``-log(1 - b_i X_ik)``, and no other
function of its numbers is needed. With ``c_i = lambda_i / (n_i b_i)``, a geometric mean is at most the arithmetic one,
so

    prod_i (1 - b_i mu_i)^n_i  <=  prod_i c_i^-n_i (sum_i n_i c_i (1 - b_i mu_i) / N)^N
                               =  prod_i c_i^-n_i ((sum_i lambda_i / b_i - mu) / N)^N,    mu = sum_i lambda_i mu_i,

and the logarithm of the capital is at least

    sum_i n_i (log c_i - L_i)  -  N log((sum_i lambda_i / b_i - mu) / N).

With m for mu, this grows with m. So if it is ``log(1 / delta)`` or more at some m, then ``mu < m``, except with
probability ``delta``. The same holds for several shares of a capital, which bet several parts of ``b_i``.

**Ranks.** If clients are draws themselves, K of them, the j-th smallest of their numbers is below the s-quantile of
all clients' only if j of them are, so with probability ``P(Binomial(K, s) >= j)`` at most. One more client has any rank
among K + 1 with equal probability, so its number is at most the j-th smallest with probability ``j / (K + 1)`` or more.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor

from wafl.promises.layers import UNIT

STAKES = ((0.85, 1.0), (0.05, 1.0 / 4.0), (0.05, 1.0 / 16.0), (0.05, 1.0 / 64.0))
"""Shares of the capital, and the factors of their bets, in case the examples spread more than expected."""
SMALLEST = 1e-100
"""Weights and bets below this value prove nothing, because they would underflow."""


def paid(values: Tensor, bet: float, part: float) -> Tensor:
    """Return ``-log(1 - b x)`` of each number, rounded up; NaN or infinite if b x is not below 1."""
    return -(-part * bet * values * (1.0 + 8.0 * UNIT)).log1p() * (1.0 + 16.0 * UNIT)


def upper_mean(
    weights: Sequence[float],
    sizes: Sequence[int],
    bets: Sequence[float],
    paid: Sequence[Sequence[float]],
    most: float,
    delta: float,
) -> float:
    """Return a bound on ``sum_i lambda_i mu_i`` that fails with probability ``delta`` at most.

    ``paid`` has a line for each stake.
    """
    here = [index for index, weight in enumerate(weights) if weight > 0.0]
    largest = most * math.fsum(weights) * (1.0 + 8.0 * UNIT)
    if not all(bets[i] * most * (1.0 + 8.0 * UNIT) < 1.0 and min(weights[i], bets[i]) > SMALLEST for i in here):
        return largest
    count, stakes = sum(sizes[i] for i in here), list[tuple[float, float]]()
    for (share, part), pays in zip(STAKES, paid, strict=True):
        logs = [math.log(weights[i] / (sizes[i] * part * bets[i])) for i in here]
        lost = math.fsum(sizes[i] * (1.0 + abs(log) + pays[i]) for i, log in zip(here, logs, strict=True))
        won = math.fsum(sizes[i] * (log - pays[i]) for i, log in zip(here, logs, strict=True))
        reach = math.fsum(weights[i] / (part * bets[i]) for i in here) * (1.0 + 16.0 * UNIT)
        stakes.append((math.log(share) + won - 16.0 * UNIT * lost, reach))

    def refuted(mean: float) -> bool:
        """Return whether the capital, less possible rounding errors, is at least ``1 / delta``."""
        capital = 0.0
        for won, reach in stakes:
            if mean >= reach:
                return True
            log = math.log((reach - mean) / count)
            at_least = won - count * (log + 16.0 * UNIT * (1.0 + abs(log))) + math.log(delta)
            capital += math.exp(min(at_least, 1.0))
        return capital >= 1.0 + 1e-9

    low, high = 0.0, largest
    if not refuted(high):
        return largest
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def rank_of(share: float | None, count: int, delta: Fraction) -> int:
    """Return the rank of the client's number that bounds a share of all clients, or one more; K + 1 if none."""
    if share is None:
        return math.ceil((count + 1) * (1 - delta))
    tail, all_ways = 0.0, math.lgamma(count + 1)
    for rank in range(count, 0, -1):
        ways = all_ways - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        tail += math.exp(ways + rank * math.log(share) + (count - rank) * math.log1p(-share))
        if tail * (1.0 + 1e-6) > delta:  # the logarithms of a million ways are off by less
            return rank + 1
    return 1
