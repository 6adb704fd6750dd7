"""The highest confidence at which K clients support a statement about the next client, in exact arithmetic.

**Its examples.** The next client's number is at most the largest of K with probability ``K / (K + 1)``.

**Its distribution.** Each of the K numbers becomes an upper bound that also allows for the client's own draw of
examples. Half of the failure probability delta pays for these bounds, and the other half for the rank of the next
client, which fails with probability ``1 / (K + 1)`` at least. So delta is at least ``2 / (K + 1)``.

In floats, ``1 / (1 - 0.9)`` is a little more than 10, and 9 clients would not support 90%.
"""

import math
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction

USUAL = 0.95
"""The confidence that a statement has unless you ask for another one, or the clients support less."""
DIGITS = 6
"""Digits after the point of the highest confidence, which is rounded down."""


def exact(number: float) -> Fraction:
    """Return the fraction that a float stands for: the simple one that rounds to it, or the decimal that Python prints.

    >>> exact(0.9), exact(5 / 6)
    (Fraction(9, 10), Fraction(5, 6))
    """
    simple = Fraction(float(number)).limit_denominator(10**DIGITS)
    return simple if float(simple) == number else Fraction(repr(float(number)))


def highest_confidence(count: int, *, own_sampling: bool) -> float:
    """Return the highest confidence that `count` clients support, rounded down to 6 digits; 0.0 if there is none.

    >>> highest_confidence(5, own_sampling=False), highest_confidence(5, own_sampling=True)
    (0.833333, 0.666666)
    """
    level = 1 - Fraction(2 if own_sampling else 1, count + 1)
    return math.floor(level * 10**DIGITS) / 10**DIGITS


def is_supported(confidence: float, count: int, *, own_sampling: bool) -> bool:
    """Return whether `count` clients support this confidence.

    >>> is_supported(0.9, 9, own_sampling=False), is_supported(0.9, 8, own_sampling=False)
    (True, False)
    """
    return (1 - exact(confidence)) * (count + 1) >= (2 if own_sampling else 1)


def clients_needed(confidence: float, *, own_sampling: bool) -> int:
    """Return the least number of clients that support this confidence.

    >>> clients_needed(0.95, own_sampling=False), clients_needed(0.95, own_sampling=True)
    (19, 39)
    """
    return math.ceil((2 if own_sampling else 1) / (1 - exact(confidence))) - 1


def percent(confidence: float) -> str:
    """Return a confidence in percent, rounded down to a whole number if it has many digits.

    >>> percent(0.95), percent(0.995), percent(0.666666)
    ('95%', '99.5%', '66%')
    """
    value = Decimal(repr(float(confidence))).scaleb(2).normalize()
    exponent = value.as_tuple().exponent
    many = isinstance(exponent, int) and exponent < -3
    return f"{value.to_integral_value(ROUND_FLOOR) if many else value:f}%"


def too_confident(confidence: float, count: int, *, own_sampling: bool) -> str:
    """Return the message for a confidence that `count` clients do not support."""
    clients = "1 held-out client supports" if count == 1 else f"{count} held-out clients support"
    what = "distribution" if own_sampling else "examples"
    highest = percent(highest_confidence(count, own_sampling=own_sampling))
    return (
        f"{clients} at most {highest} confidence about the next client's {what}; {percent(confidence)} takes "
        f"{clients_needed(confidence, own_sampling=own_sampling)} clients"
    )
