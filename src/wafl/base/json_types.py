"""JSON that may come from anywhere: how deep it is nested, and which types its values have."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

DEPTH = 50
"""Levels of lists and tables in a file; those that wafl writes have fewer than ten."""
DIGITS = 300
"""The most digits of a whole number in a file; a float cannot stand for one with more."""


def parsed(data: bytes | str) -> Any:
    """The value that JSON describes; a ValueError if it is damaged or nested too deeply to work with."""
    try:
        content: Any = json.loads(data, parse_int=_short_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(content)
    return content


def check_depth(content: Any) -> None:
    """Raise ValueError if lists and tables are nested more than ``DEPTH`` levels deep."""
    level: list[Any] = [[content]]
    for _ in range(DEPTH + 1):
        parts = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        level = [inner for part in parts for inner in part if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEPTH} levels deep")


def _short_int(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"it holds a whole number of {len(digits)} digits, more than {DIGITS}")
    return int(digits)


def parsed_table(data: bytes | str) -> dict[str, Any]:
    """The table that JSON describes; a ValueError if it is not one."""
    content = parsed(data)
    if not isinstance(content, dict):
        raise ValueError("it is not a table")
    return {str(key): value for key, value in content.items()}


def check_types(table: Any, types: Mapping[str, Any], where: str = "") -> None:
    """A ValueError that names the first value of a table that is missing or has another type.

    Args:
        table: what a file holds.
        types: by name, a type, or again such a table of types. Names that end with ``?`` may be missing; ``*`` is each
            name that the table has.
        where: the name of the table itself.

    >>> check_types({"loss": 0.5, "by": {"client": [1]}}, {"loss": float, "by": {"client": list[str]}, "seed?": int})
    Traceback (most recent call last):
    ValueError: by.client.0: input should be a valid string
    """
    if not isinstance(table, dict):
        raise ValueError(f"{where or 'it'} is not a table")
    for key, kind in (dict.fromkeys(table, types["*"]) if "*" in types else types).items():
        name = key.removesuffix("?")
        key_path = f"{where}.{name}" if where else name
        if name not in table:
            if key == name:
                raise ValueError(f"{key_path} is missing")
        elif isinstance(kind, Mapping):
            check_types(table[name], kind, key_path)  # pyright: ignore[reportUnknownArgumentType]
        else:
            as_type(kind, table[name], key_path)


def as_type(kind: Any, value: Any, where: str = "") -> Any:
    """The value as this type, such as ``list[float]`` or a dataclass; a ValueError that names what does not fit."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key_path = ".".join(map(str, (*([where] if where else ()), *first["loc"])))
        raise ValueError(f"{key_path}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
