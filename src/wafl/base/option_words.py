"""An option in words: its default, and the values that it may have."""

from __future__ import annotations

import math

from wafl.base.options import Choice, Count, EachRound, Option, Range


def default_of(option: Option) -> str:
    """The default of an option as a word."""
    value = option.default
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def range_of(option: Option) -> str:
    """The values that an option may have, in words."""
    limits = option.limits.range if isinstance(option.limits, EachRound) else option.limits
    if isinstance(limits, Choice):
        return ", ".join("inf" if value == math.inf else str(value) for value in limits.values)
    if isinstance(limits, Count):
        return f"whole, at least {limits.low}"
    return limits.words().removeprefix("be ").removeprefix("lie ") if isinstance(limits, Range) else ""
