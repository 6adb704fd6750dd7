"""Compute the highest confidence at which K clients support a statement about the next client, in exact arithmetic.

**Its examples.** The next client's number is at most the largest of K with probability ``K / (K + 1)``.

**Its distribution.** Each of the K numbers becomes an upper bound that also allows for the client's draw of
examples. Half of the failure probability delta pays for these bounds, and the other half for the rank of the next
client, which fails with probability ``1 / (K + 1)`` at least. So delta is at least ``2 / (K + 1)``.

**Liars.** If up to f of the K numbers may be anything, the number whose rank is higher by f is at least the desired
one, whatever the f numbers are. So the least failure probabilities are ``f + 1`` times as large.

In floats, ``1 / (1 - 0.9)`` is a little more than 10, and 9 clients would not support 90%.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from wafl.base.describe import percent, some
from wafl.base.errors import PreconditionError

USUAL = 0.95
"""The default confidence of a statement, unless the clients support less."""
DIGITS = 6
"""The number of decimals of the highest confidence, which is rounded down."""


def exact(number: float) -> Fraction:
    """Return the fraction for a float: the simple one that rounds to it, or the decimal that Python prints.

    >>> exact(0.9), exact(5 / 6)
    (Fraction(9, 10), Fraction(5, 6))
    """
    simple = Fraction(float(number)).limit_denominator(10**DIGITS)
    return simple if float(simple) == number else Fraction(repr(float(number)))


def least_failure(count: int, *, own_sampling: bool, liars: int = 0) -> Fraction:
    """Return the lowest probability of failure that `count` clients support, `liars` of which may report any number.

    >>> least_failure(5, own_sampling=True), least_failure(9, own_sampling=False, liars=1)
    (Fraction(1, 3), Fraction(1, 5))
    """
    return Fraction((2 if own_sampling else 1) * (liars + 1), count + 1)


def highest_confidence(count: int, *, own_sampling: bool, liars: int = 0) -> float:
    """Return the highest confidence that `count` clients support, rounded down to 6 digits; 0.0 if there is none.

    >>> highest_confidence(5, own_sampling=False), highest_confidence(5, own_sampling=True)
    (0.833333, 0.666666)
    """
    level = 1 - least_failure(count, own_sampling=own_sampling, liars=liars)
    return max(math.floor(level * 10**DIGITS), 0) / 10**DIGITS


def is_supported(confidence: float, count: int, *, own_sampling: bool, liars: int = 0) -> bool:
    """Return whether `count` clients support this confidence.

    >>> is_supported(0.9, 9, own_sampling=False), is_supported(0.9, 8, own_sampling=False)
    (True, False)
    """
    return 1 - exact(confidence) >= least_failure(count, own_sampling=own_sampling, liars=liars)


def clients_needed(confidence: float, *, own_sampling: bool, liars: int = 0) -> int:
    """Return the least number of clients that support this confidence.

    >>> clients_needed(0.95, own_sampling=False), clients_needed(0.95, own_sampling=True)
    (19, 39)
    """
    return math.ceil((2 if own_sampling else 1) * (liars + 1) / (1 - exact(confidence))) - 1


def supported(asked: float | None, count: int, *, own_sampling: bool, liars: int = 0) -> float:
    """Return the requested confidence, or without one the default or the highest that `count` clients support.

    Raises PreconditionError, a ValueError, for a confidence that they do not support. It is 0.0 if they support none.

    >>> supported(None, 5, own_sampling=False), supported(0.8, 5, own_sampling=False)
    (0.833333, 0.8)
    """
    confidence = USUAL if asked is None else asked
    if is_supported(confidence, count, own_sampling=own_sampling, liars=liars):
        return confidence
    if asked is not None:
        raise PreconditionError(too_confident(confidence, count, own_sampling=own_sampling, liars=liars))
    return highest_confidence(count, own_sampling=own_sampling, liars=liars)


def with_confidence(confidence: float, count: int, *, fallen: bool) -> str:
    """Return the end of a sentence; `fallen` if the confidence is the most that `count` clients support.

    >>> with_confidence(0.95, 39, fallen=False), with_confidence(0.833333, 5, fallen=True)
    ('with 95% confidence', 'with 83% confidence, the most that 5 clients support')
    """
    most = f", the most that {count} client{'s support' if count != 1 else ' supports'}"
    return f"with {percent(confidence)} confidence{most if fallen else ''}"


def too_confident(confidence: float, count: int, *, own_sampling: bool, liars: int = 0) -> str:
    """Return the message for a confidence that `count` clients do not support."""
    clients = "1 held-out client supports" if count == 1 else f"{count} held-out clients support"
    what = "distribution" if own_sampling else "examples"
    highest = percent(highest_confidence(count, own_sampling=own_sampling, liars=liars))
    most = max(count + 1 - (2 if own_sampling else 1) * (liars + 1), 0)
    needed = clients_needed(confidence, own_sampling=own_sampling, liars=liars)
    lying = f", {liars} of which may lie" if liars else ""
    return (
        f"{clients} at most {highest} confidence ({most}/{count + 1}) about the next client's {what}{lying}; "
        f"{percent(confidence)} takes {needed} clients"
    )


def check_invited(invited: Sequence[str] | None, names: Sequence[str]) -> tuple[str, ...]:
    """Return the invited clients that are not among `names`; raise ValueError for names that were not invited."""
    if invited is None:
        return ()
    for who in (invited, names):
        if len(set(who)) < len(who):
            raise ValueError(f"client {next(name for name in who if list(who).count(name) > 1)} occurs twice")
    if uninvited := [name for name in names if name not in set(invited)]:
        raise ValueError(f"client {uninvited[0]} was not invited: invite clients before you look at their data")
    return tuple(name for name in invited if name not in set(names))


def missing_line(missing: Sequence[str], count: int) -> str:
    """Return the sentence about invited clients that did not answer."""
    whom = f"{len(missing)} of {count} invited clients gave no finite answer and count{'s' * (len(missing) == 1)}"
    return f"{whom} as infinity: {some(missing, 8)}"
