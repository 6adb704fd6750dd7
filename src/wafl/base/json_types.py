"""Read JSON from untrusted sources: limit its nesting and check the types of its values."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

DEPTH = 50
"""The maximum nesting of lists and tables in a file; files of wafl have fewer than ten levels."""
DIGITS = 300
"""The maximum number of digits of a whole number in a file; a float cannot represent longer ones."""


def parsed(data: bytes | str) -> Any:
    """Return the value that JSON describes; raise ValueError if it is damaged or nested too deeply."""
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
    """Return the table that JSON describes; raise ValueError if it is not a table."""
    content = parsed(data)
    if not isinstance(content, dict):
        raise ValueError("it is not a table")
    return {str(key): value for key, value in content.items()}


def check_types(table: Any, types: Mapping[str, Any], where: str = "") -> None:
    """Raise ValueError with the name of the first value in a table that is missing or has the wrong type.

    Args:
        table: the content of a file.
        types: a type or another such table per name. Names that end with ``?`` may be missing; ``*`` stands for every
            name in the table.
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
    """Return the value as this type, such as ``list[float]`` or a dataclass; raise ValueError that names a mismatch."""
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
