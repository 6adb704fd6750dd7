"""Checks of numbers that a user passes in: an error has the value, the range and the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}={value} must be positive and finite")


def in_round(name: str, value: float | Callable[[int], float], round: int) -> float:
    """The value of an option in a round, if it is a function of the round; refuses one that is not positive."""
    if not callable(value):
        return value
    found = value(round)
    check_positive(f"round {round}: {name}", found)
    return found


def check_space(space: Any, bounds: Any) -> None:
    """Refuse what is not the name of a layer, and bounds with one: those of the data say nothing about its output."""
    if space is None:
        return
    if not isinstance(space, str) or not space:
        raise ValueError(f"space={space!r} must be the name of a layer, such as 'embedding'")
    if bounds not in (None, "data"):
        raise ValueError(f"bounds={bounds} are for inputs, and space={space!r} moves a layer's output: leave one out")


def finite_rows(rows: Tensor) -> Tensor:
    """Which rows ``[N, P]`` hold neither NaN nor infinity.

    A finite sum has finite terms, so the terms are looked at only where a sum is not finite.
    """
    finite = rows.sum(1).isfinite()
    return finite if bool(finite.all()) else rows.isfinite().all(1)


def check_seed(seed: Any, name: str = "seed") -> int:
    """The seed as a plain integer; refuses one outside its range."""
    if not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32:
        raise ValueError(f"{name}={seed!r} must lie in 0 .. 2**32 - 1 and be a whole number")
    return int(seed)
