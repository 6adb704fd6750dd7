"""Read TOML from untrusted sources: limit its length and the depth of its keys before parsing."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from wafl.base.json_types import check_depth

LONGEST = 2**22
"""The maximum number of characters in a file; Python's parser reads about 3 million per second."""
MOST_PARTS = 16
"""The maximum number of parts of a dotted key; the parser's time and memory grow with the square."""
# Texts that do not end reach to where the parser stops, so that each character is looked at once.
_PART = r"""(?: [\w-]++ | "[^"\\\n]*+ (?:\\[^\n][^"\\\n]*+)*+ "? | '[^'\n]*+ '? )"""
_TOKEN = re.compile(
    rf"""\#[^\n]*+
    | "{{3}} (?: [^"\\]++ | \\. | "(?!"") )*+ "{{0,5}}
    | '{{3}} (?: [^']++ | '(?!'') )*+ '{{0,5}}
    | (?P<key> {_PART} (?: [ \t]*+ \. [ \t]*+ {_PART} )*+ )""",
    re.DOTALL | re.VERBOSE,
)
_PARTS = re.compile(_PART, re.VERBOSE)


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the table that TOML describes; raise ValueError if it is damaged, too long or nested too deeply."""
    if len(text) > LONGEST:
        raise ValueError(f"it has {len(text)} characters, more than {LONGEST}")
    for key in (match["key"] or "" for match in _TOKEN.finditer(text)):  # a plain value looks like a key, too
        if key.count(".") >= MOST_PARTS and (parts := len(_PARTS.findall(key))) > MOST_PARTS:
            raise ValueError(f"it has a key of {parts} parts, more than {MOST_PARTS}")
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_depth(content)
    return content


def with_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of one of our own files with tuples for its lists.

    >>> with_tuples({"names": ["a", "b"]})
    {'names': ('a', 'b')}
    """
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
