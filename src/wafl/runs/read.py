"""An experiment from a TOML file: every fault with its key, the range and the nearest valid name."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from wafl.core.errors import ConfigError
from wafl.runs.config import Experiment
from wafl.runs.keys import Section
from wafl.runs.method_keys import METHOD_TABLES, OWN

TAGS = {"value", "list"}
"""What pydantic puts into the place of a fault to say which branch of a union it means."""


def read_experiment(path: Path, changes: Sequence[str] = ()) -> Experiment:
    """The experiment a file describes, with ``key=value`` changes of the command line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {reason}. `wafl config init` writes a starter") from error
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for change in changes:
        apply_change(content, change)
    return parse_experiment(content, str(path))


def parse_experiment(content: Mapping[str, Any], where: str) -> Experiment:
    """The experiment that plain values describe; ``where`` is what messages call them."""
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        faults = [_explain(fault, content) for fault in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{where}: {fault}" for fault in dict.fromkeys(faults))) from error


def apply_change(content: dict[str, Any], change: str) -> None:
    """Set ``section.key=value``; the value is TOML, and a word without quotes is itself.

    A method is meant by its place or its name: ``methods.0.gamma=1`` or ``methods.wafl.gamma=1``.
    """
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change!r} must be key=value, such as schedule.rounds=50")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise ConfigError(f"--set {key.strip()}: the value is nested too deeply") from None
    except ValueError:
        value = text.strip()
    *path, last = (part.strip() for part in key.split("."))
    target: Any = content
    for part in path:
        target = _step(target, part, change)
    if isinstance(target, list):
        target[_index(cast("list[Any]", target), last, change)] = value
    elif isinstance(target, dict):
        target[last] = value
    else:
        raise ConfigError(f"--set {change!r}: {'.'.join(path)} is a value and has no key {last!r}")


def _step(target: Any, part: str, change: str) -> Any:
    if isinstance(target, list):
        return target[_index(cast("list[Any]", target), part, change)]
    if not isinstance(target, dict):
        raise ConfigError(f"--set {change!r}: there is no {part!r} in a value")
    return cast("dict[str, Any]", target).setdefault(part, {})


def _index(items: list[Any], part: str, change: str) -> int:
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    names = [str(item.get("name", item.get("method", ""))).lower() if isinstance(item, dict) else "" for item in items]
    if part.lower() in names:
        return names.index(part.lower())
    known = ", ".join(filter(None, names)) or "none by name"
    raise ConfigError(f"--set {change!r}: no entry {part!r}; there are {len(items)}: {known}")


def _explain(fault: Any, content: Mapping[str, Any]) -> str:
    *inside, last = fault["loc"] or (None,)
    unknown = fault["type"] == "extra_forbidden"  # then the last part is the user's own word
    place = [part for part in inside if part not in TAGS] + (
        [last] if last is not None and (unknown or last not in TAGS) else []
    )
    place = _without_method_names(place, content)
    # What a key holds that is no letter must not break the line.
    key = ".".join(str(part).encode("unicode_escape").decode() for part in place) or "the file"
    if fault["type"] == "extra_forbidden":
        near = _nearest(str(place[-1]), _valid_names(place[:-1], content))
        valid = ", ".join(sorted(_valid_names(place[:-1], content)))
        return f"unknown key {key}" + (f": did you mean {near[0]}?" if near else f": there are {valid}")
    if fault["type"] == "missing":
        return f"{key} is missing"
    if fault["type"] == "union_tag_invalid" and "discriminator" in fault.get("ctx", {}):
        given = str(fault["ctx"].get("tag", ""))
        names = _method_names()
        near = [name for name in names if name.lower() == given.lower()] or difflib.get_close_matches(
            given, names, 1, 0.4
        )
        return f"{key}.method = {given!r} is none of {', '.join(names)}" + (
            f": did you mean {near[0]}?" if near else ""
        )
    if fault["type"] == "union_tag_not_found" and not isinstance(fault.get("input"), dict):
        return f"{key} = {fault.get('input')!r}: should be a valid dictionary"
    if fault["type"] == "union_tag_not_found":
        return f"{key}.method is missing: one of {', '.join(_method_names())}"
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    given = fault.get("input")
    shown = "" if isinstance(given, dict | BaseModel) else f" = {given!r}"
    return f"{key}{shown}: {message}"


def _nearest(word: str, names: Sequence[str]) -> list[str]:
    """The name most like the word, of equals the one that begins as it does."""
    word = word.lower()
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)

    def likeness(name: str) -> tuple[float, bool]:
        return difflib.SequenceMatcher(None, word, name).ratio(), name[:1] == word[:1]

    return sorted(close, key=likeness, reverse=True)[:1]


def _without_method_names(place: list[Any], content: Mapping[str, Any]) -> list[Any]:
    """pydantic puts the method's name after its place: ``methods.0.WAFL.gamma`` is ``methods.0.gamma``."""
    if len(place) > 2 and place[0] == "methods" and place[2] in (*METHOD_TABLES, OWN):
        return [*place[:2], *place[3:]]
    return place


def _valid_names(place: Sequence[Any], content: Mapping[str, Any]) -> list[str]:
    """The keys a section may have."""
    if not place:
        return list(Experiment.model_fields)
    if place[0] == "methods" and len(place) > 1:
        methods = content.get("methods")
        entry: Any = methods[place[1]] if isinstance(methods, list) else {}
        kind = METHOD_TABLES.get(cast("dict[str, Any]", entry).get("method", "") if isinstance(entry, dict) else "")
        part = kind if len(place) == 2 else None
        if part is not None:
            return list(part.model_fields)
    section = Experiment.model_fields.get(str(place[0]))
    kinds = [section.annotation, *getattr(section.annotation, "__args__", ())] if section is not None else []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Section):
            return list(kind.model_fields)
    return []


def _method_names() -> list[str]:
    return list(METHOD_TABLES)
