"""Any setting as plain values that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


def describe(value: Any, call: Callable[[Callable[..., Any]], Any] | None = None) -> Any:
    """Objects become dictionaries with their type's name, infinities become words, and functions their names.

    With ``call``, a function becomes what ``call`` returns for it.
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
    """The first of the values as text, and how many others there are."""
    return ", ".join(map(str, values[:most])) + (f" and {len(values) - most} more" if len(values) > most else "")
