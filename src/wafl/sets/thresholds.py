"""Compute a threshold from the clients' answers, by conformal prediction with clients as units.

There are K invited clients. ``m_k(t)`` is the fraction of client k's scores above t, and 1 for a client that did not
answer. All comparisons are exact: a coverage is the decimal that Python prints, and counts are fractions.

**The next example of the next client** is covered with probability `coverage` by the smallest t with

    (sum_k m_k(t) + 1) / (K + 1) <= 1 - coverage.

This is conformal risk control with clients as units (Angelopoulos et al. 2024), also known as hierarchical conformal
prediction (Lee, Barber and Willett 2023; Dunn, Wasserman and Ramdas 2018).

**The next client**: let ``t_k`` be the smallest t with ``m_k(t) <= 1 - coverage``. With probability `confidence`, the
next client's ``t_k`` is at most the ``ceil(confidence (K + 1))``-th smallest. That is the smallest t at which this
number of clients has ``m_k(t) <= 1 - coverage``. For the next client's distribution, half of the failure probability
``1 - confidence`` pays for the K clients' draws: ``m_k(t) n_k`` must be so small that a binomial variable of ``n_k``
draws, each above with probability ``1 - coverage``, is at most this small with probability ``(1 - confidence) / 2K``.

**Liars.** If up to f clients may answer anything, f is added to the sum, and to the rank.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

from wafl.base.errors import PreconditionError
from wafl.sets.answers import Answer
from wafl.theory.population.levels import exact

Above = Sequence[tuple[int, float]]
"""For each client that answered, its number of examples, and the number of their scores above a threshold."""
Holds = Callable[[Above], bool]
"""A function that returns whether a threshold is high enough, from the clients' counts above it."""


def smallest(candidates: Sequence[float], is_high_enough: Callable[[int], bool]) -> float:
    """Return the first of the increasing `candidates` whose index is high enough, or infinity."""
    index = bisect_left(range(len(candidates)), True, key=is_high_enough)
    return candidates[index] if index < len(candidates) else math.inf


def on_grid(grid: Sequence[float], answers: Sequence[Answer], holds: Holds) -> float:
    """Return the threshold that follows from the clients' answers on a grid."""
    return smallest(grid, lambda index: holds([(answer.size, answer.above[index]) for answer in answers]))


def for_example(invited: int, coverage: float, spent: float = 0.0, liars: int = 0) -> Holds:
    """Return the condition ``(sum_k m_k(t) + liars + 1) / (K + 1) <= 1 - coverage - spent``.

    >>> for_example(9, 0.9)([(10, 0)] * 9), for_example(9, 0.9)([(10, 0)] * 8 + [(10, 1)])
    (True, False)
    """
    missed = 1 - exact(coverage) - Fraction(spent)
    if missed * (invited + 1) < liars + 1:
        highest = Fraction(max(invited - liars, 0), invited + 1) - Fraction(spent)
        more = " minus gamma radius^power" if spent else ""
        lying = f", {liars} of which may lie," if liars else ""
        raise PreconditionError(
            f"coverage={coverage:g} of the next example needs more clients: {invited}{lying} allow at most "
            f"{max(invited - liars, 0)}/{invited + 1}{more} ({math.floor(1000 * highest) / 10:g}%)"
        )

    def holds(answers: Above) -> bool:
        totals: dict[int, float] = {}
        for size, count in answers:  # sums of multiples of 2^-20 are exact
            totals[size] = totals.get(size, 0.0) + count
        room = missed * (invited + 1) - liars - 1 - (invited - len(answers))
        near = math.fsum(total / size for size, total in totals.items()) - float(room)
        if abs(near) > 1e-9 * (invited + 1):  # more than rounding
            return near < 0.0
        return sum(Fraction(total) / size for size, total in totals.items()) <= room

    return holds


def for_client(invited: int, coverage: float, confidence: float, *, own_sampling: bool, liars: int = 0) -> Holds:
    """Return the condition that enough clients for the confidence have ``m_k(t) <= 1 - coverage``.

    >>> for_client(9, 0.9, 0.9, own_sampling=False)([(10, 1)] * 9)
    True
    """
    level, missed = exact(confidence), 1 - exact(coverage)
    rank = math.ceil((level if not own_sampling else (1 + level) / 2) * (invited + 1)) + liars
    failure = float((1 - level) / 2 / invited)

    @cache
    def most(size: int) -> float:
        return most_above(size, float(missed), failure) if own_sampling else below(missed * size)

    return lambda answers: sum(count <= most(size) for size, count in answers) >= rank


def below(number: Fraction) -> float:
    """Return the largest float that is at most `number`.

    >>> below(Fraction(1, 10)) < 0.1, below(Fraction(1, 2))
    (True, 0.5)
    """
    value = float(number)
    return value if Fraction(value) <= number else math.nextafter(value, -math.inf)


def most_above(size: int, missed: float, failure: float) -> int:
    """Return the largest c with ``P(Binomial(size, missed) <= c) <= failure``, or -1 if there is none.

    >>> most_above(44, 0.1, 0.01), most_above(43, 0.1, 0.01), most_above(1000, 0.1, 0.01)
    (0, -1, 78)
    """
    from scipy.stats import binom

    low, high = -1, size
    while high - low > 1:
        middle = (low + high) // 2
        fits = float(binom.cdf(middle, size, missed)) <= failure * (1.0 - 1e-9)
        low, high = (middle, high) if fits else (low, middle)
    return low
