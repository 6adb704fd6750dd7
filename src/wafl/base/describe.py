"""Convert values for others: plain values for JSON, shortened lists, few digits, text that is safe on a terminal."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

# Escape sequences begin with control characters, marks of direction reorder a line, and half a pair cannot be encoded.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def describe(value: Any, call: Callable[[Callable[..., Any]], Any] | None = None) -> Any:
    """Convert a value to plain values.

    Objects become tables with their type, infinities become words, and functions their names or the result of ``call``.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "type": type(value).__name__,
            **{field.name: describe(getattr(value, field.name), call) for field in fields(value)},
        }
    if isinstance(value, Mapping):
        return {str(name): describe(item, call) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Sequence):
        return [describe(item, call) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if call is not None and callable(value) and not isinstance(value, type):
        return describe(call(value))
    if type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__"):  # whose repr is a memory address
        return {"type": type(value).__name__, **describe(vars(value), call)}
    return getattr(value, "__qualname__", repr(value))


def some(values: Sequence[Any], most: int = 5) -> str:
    """Return the first values as text, followed by the number of omitted values."""
    return ", ".join(map(str, values[:most])) + (f" and {len(values) - most} more" if len(values) > most else "")


def rounded(value: float, digits: int) -> float:
    """Round a value to ``digits`` significant digits.

    >>> rounded(0.0123456, 3)
    0.0123
    """
    return float(f"{value:.{digits}g}")


def rounded_up(value: float, digits: int = 4) -> str:
    """Format a number with ``digits`` digits after the point, never below the value.

    >>> rounded_up(0.12341), rounded_up(2.0)
    ('0.1235', '2.0000')
    """
    if not math.isfinite(value):
        return str(value)
    scale = 10**digits
    raised = math.ceil(value * scale) / scale
    return f"{raised if raised >= value else (math.ceil(value * scale) + 1) / scale:.{digits}f}"


def percent(confidence: float) -> str:
    """Return a confidence in percent, rounded down to a whole number if it has many digits.

    >>> percent(0.95), percent(0.995), percent(0.666666)
    ('95%', '99.5%', '66%')
    """
    value = Decimal(repr(float(confidence))).scaleb(2).normalize()
    exponent = value.as_tuple().exponent
    many = isinstance(exponent, int) and exponent < -3
    return f"{value.to_integral_value(ROUND_FLOOR) if many else value:f}%"


def visible(text: str) -> str:
    r"""Replace every control character of a text, which a terminal would execute, by a question mark.

    >>> visible("client \x1b[2J7")
    'client ?[2J7'
    """
    return _HIDDEN.sub("?", text)
