"""Check numbers that users pass, and the cost of computing with them; errors name value, range and remedy."""

import math
import os
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless a number is positive and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}={value} must be positive and finite")


def in_round(name: str, value: float | Callable[[int], float], round: int) -> float:
    """Return an option's value in a round, and check the result if the option is a function of the round."""
    if not callable(value):
        return value
    number = value(round)
    check_positive(f"round {round}: {name}", number)
    return number


SHORTEST, LONGEST = 1e-100, 1e50
"""The range of radii whose squares float64 can represent."""


def check_radii(radii: Sequence[float]) -> list[float]:
    """Return radii as plain numbers; raise ValueError for other values and for squares outside float64's range."""
    if isinstance(radii, str | float | int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"radii={radii!r} must be a list of numbers, such as [{radii}]")
    try:
        wanted = [float(radius) for radius in radii]
    except (TypeError, ValueError):
        raise ValueError(f"radii={radii!r} must be a list of numbers, such as [0.1, 0.5]") from None
    if not wanted:
        raise ValueError("radii is empty: give at least one, in the unit of the data")
    for radius in wanted:
        if not (radius == 0 or SHORTEST <= radius <= LONGEST):
            raise ValueError(
                f"radius={radius} must be 0 or lie in [{SHORTEST:g}, {LONGEST:g}], in the unit of the data"
            )
    return wanted


def check_space(space: Any, bounds: Any) -> None:
    """Raise ValueError unless ``space`` is the name of a layer and no bounds are given with it.

    The bounds of the data do not apply to a layer's output.
    """
    if space is None:
        return
    if not isinstance(space, str) or not space:
        raise ValueError(f"space={space!r} must be the name of a layer, such as 'embedding'")
    if bounds not in (None, "data"):
        raise ValueError(f"bounds={bounds} are for inputs, and space={space!r} moves a layer's output: leave one out")


def finite_rows(rows: "Tensor") -> "Tensor":
    """Return which rows ``[N, P]`` contain neither NaN nor infinity.

    A finite sum has finite terms, so most rows are only summed.
    """
    finite = rows.sum(1).isfinite()
    return finite if bool(finite.all()) else rows.isfinite().all(1)


def check_seed(seed: Any, name: str = "seed") -> int:
    """Return the seed as a plain integer; raise ValueError if it is out of range."""
    if not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32:
        raise ValueError(f"{name}={seed!r} must lie in 0 .. 2**32 - 1 and be a whole number")
    return int(seed)


STEP = 1e-5
"""The minimum duration of one step of an ascent or a descent, in seconds, on any machine."""

MOST_SECONDS = 86_400.0
"""The time limit of all steps of one run at that speed; real steps are a hundred times slower."""

LONGEST_ASCENT = 3_600.0
"""The time limit of one ascent, such as an attack, at that speed."""


def check_memory(what: str, size: float, remedy: str) -> None:
    """Raise ValueError if something needs more memory than the machine has."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > machine:
        raise ValueError(
            f"{what} would take {in_bytes(size)} of memory, and this machine has {in_bytes(machine)}: {remedy}"
        )


def check_steps(what: str, steps: float, remedy: str, most: float = MOST_SECONDS) -> None:
    """Raise ValueError if the steps take too long even at the highest possible speed."""
    seconds = steps * STEP
    if seconds > most:
        time = f"{seconds / 86_400.0:,.3g} days" if seconds > 86_400.0 else f"{seconds / 3_600.0:.3g} hours"
        raise ValueError(f"{what}: up to {steps:.3g} steps, which take {time} or more: {remedy}")


def in_bytes(size: float) -> str:
    """Format a size with its unit.

    >>> in_bytes(2 * 2**30), in_bytes(500)
    ('2 GiB', '500 bytes')
    """
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if size >= 2**power:
            return f"{size / 2**power:,.3g} {unit}" if size < 1000 * 2**power else f"{size / 2**power:,.0f} {unit}"
    return f"{size:,.0f} bytes"
