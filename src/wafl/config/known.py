"""Provide the named methods, attacks and shifts as data without torch.

``tools/methods_page.py`` writes ``methods.json`` and ``tools/attacks_page.py`` writes ``attacks.json``; tests compare
them with the lists.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from wafl.base.errors import did_you_mean, nearest
from wafl.base.extras import Package, require
from wafl.base.options import Box, Choice, Count, EachRound, Matrix, Option, Range

KINDS: dict[str, type] = {kind.__name__: kind for kind in (bool, float, int, str)}
RENAMED = {"shape": "cost_matrix"}
"""The options of methods, by the names of an earlier version."""
LIMITS: dict[str, type] = {kind.__name__: kind for kind in (Box, Choice, Count, EachRound, Range, Matrix)}


@dataclass(frozen=True)
class KnownMethod:
    """A named method in words, with its own options; ``tools/methods_page.py`` defines the words."""

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
    """Return every named method by its name, in the order of the list."""
    listed = json.loads(files("wafl.config").joinpath("methods.json").read_text(encoding="utf-8"))
    return {each["name"]: KnownMethod(options=options_from_json(each.pop("options")), **each) for each in listed}


def known_method(name: str) -> KnownMethod:
    """Return the method with this name, ignoring case; raise an error with a similar name if there is none."""
    known = known_methods()
    match = next((each for each in known if each.lower() == name.lower()), None)
    if match is None:
        hint = did_you_mean(name, known) or f": there are {', '.join(known)}"
        raise ValueError(f"unknown method {name!r}{hint}")
    return known[match]


def default_of(option: Option) -> str:
    """Return the default of an option as text."""
    value = option.default
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def range_of(option: Option) -> str:
    """Describe the range of an option."""
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
    """Return limits from the name of their class and its fields."""
    if table is None:
        return None
    (kind, values), *_ = table.items()
    return LIMITS[kind](**{name: _value(value) for name, value in values.items()})


def _value(value: Any) -> Any:
    return _limits(value) if isinstance(value, dict) else tuple(value) if isinstance(value, list) else value  # pyright: ignore


@dataclass(frozen=True)
class KnownAttack:
    """An attack or a shift: its name, a summary, and the options that files and the command can set, the size first.

    ``package`` is None unless the attack needs an optional package.
    """

    name: str
    summary: str
    options: dict[str, Option]
    package: Package | None = None

    @property
    def size(self) -> str:
        """The name of the size option."""
        return next(iter(self.options))

    def check_package(self) -> None:
        """Raise a ValueError if the attack needs a package that is not installed."""
        if self.package is not None:
            require(self.package.module, extra=self.package.extra, what=f"attack={self.name!r}")


@cache
def known_attacks() -> dict[str, KnownAttack]:
    """Return every listed attack, then every listed shift, by name."""
    listed = json.loads(files("wafl.config").joinpath("attacks.json").read_text(encoding="utf-8"))
    return {each["name"]: _known_attack(**each) for each in listed}


def _known_attack(name: str, summary: str, options: list[Any], package: list[str] | None = None) -> KnownAttack:
    return KnownAttack(name, summary, options_from_json(options), None if package is None else Package(*package))


def unknown_attack(name: str, known: Iterable[str]) -> str:
    """Return the message about an attack that does not exist: the closest name, and all names."""
    names = list(known)
    near = nearest(name, names)
    hint = "" if near is None else f" (did you mean {near!r}?)"
    return f"unknown attack {name!r}{hint}: use one of {', '.join(names)}"


def options_by_name(
    kinds: Mapping[str, Mapping[str, Option]], first: Iterable[str] = ()
) -> dict[str, dict[str, Option]]:
    """Return, for each option, the kinds that have it with their own declarations; names in ``first`` lead."""
    names = [name for options in kinds.values() for name in options]
    return {
        name: {kind: options[name] for kind, options in kinds.items() if name in options}
        for name in dict.fromkeys((*first, *names))
    }


def purposes(owners: Mapping[str, Option]) -> list[str]:
    """Return the purposes of an option, each text once and after the kinds that have it."""
    texts = dict[str, list[str]]()
    for kind, option in owners.items():
        texts.setdefault(f"{option.doc[:1].lower()}{option.doc[1:]}", []).append(kind)
    return [f"{', '.join(kinds)}: {text}" for text, kinds in texts.items()]


def describe_option(owners: Mapping[str, Option]) -> str:
    """Return the help of an option: its purpose and its default for the kinds that have it, each text once."""
    words, defaults = purposes(owners), dict[str, list[str]]()
    for kind, option in owners.items():
        if option.default is not None:
            defaults.setdefault(default_of(option), []).append(kind)
    if len(defaults) == 1:
        words.append(f"Default: {', '.join(defaults)}.")
    elif defaults:
        each = (f"{value} ({', '.join(kinds)})" for value, kinds in defaults.items())
        words.append(f"Default: {', '.join(each)}.")
    return " ".join(words)
