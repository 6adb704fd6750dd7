"""The named methods as data that need no torch; ``tools/methods_page.py`` writes ``methods.json``, a test compares."""

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from wafl.base.near import did_you_mean
from wafl.base.options import Box, Choice, Count, EachRound, Matrix, Option, Range

KINDS: dict[str, type] = {kind.__name__: kind for kind in (bool, float, int, str)}
LIMITS: dict[str, type] = {kind.__name__: kind for kind in (Box, Choice, Count, EachRound, Range, Matrix)}


@dataclass(frozen=True)
class KnownMethod:
    """A named method in words, with its own options; ``tools/methods_page.py`` says what the words are."""

    name: str
    summary: str
    moves: str
    sends: str
    use: str
    paper: str
    short: str
    options: dict[str, Option]


@cache
def known_methods() -> dict[str, KnownMethod]:
    """Every named method by its name, in the order of the list."""
    listed = json.loads(files("wafl.config").joinpath("methods.json").read_text(encoding="utf-8"))
    return {each["name"]: KnownMethod(options=options_from_json(each.pop("options")), **each) for each in listed}


def known_method(name: str) -> KnownMethod:
    """The method of this name, in any case; an error with the name that was meant if there is none."""
    known = known_methods()
    match = next((each for each in known if each.lower() == name.lower()), None)
    if match is None:
        hint = did_you_mean(name, known) or f": there are {', '.join(known)}"
        raise ValueError(f"unknown method {name!r}{hint}")
    return known[match]


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


def options_from_json(listed: list[dict[str, Any]]) -> dict[str, Option]:
    """Return options by name from a generated JSON file."""

    def made(name: str, kind: str, limits: Any, **rest: Any) -> Option:
        return Option(name, KINDS[kind], _limits(limits), **rest)

    return {each["name"]: made(**each) for each in listed}


def _limits(table: dict[str, Any] | None) -> Any:
    """Limits from the name of their class and its fields."""
    if table is None:
        return None
    (kind, values), *_ = table.items()
    return LIMITS[kind](**{name: _value(value) for name, value in values.items()})


def _value(value: Any) -> Any:
    return _limits(value) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value  # pyright: ignore
