"""Read an experiment from a TOML file; errors name the key, the range and the closest valid name."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError

from wafl.base.errors import ConfigError, nearest
from wafl.base.options import options_of
from wafl.base.toml import parsed_toml
from wafl.config.experiment import Between, Experiment
from wafl.config.keys import Section
from wafl.config.known import RENAMED
from wafl.config.method_keys import METHOD_TABLES, OWN, PART_TABLES, label_of
from wafl.config.toml_file import read_toml

BRANCHES = {"value", "list", "table"}
"""The names that pydantic inserts in a fault's location for the branch of a swept value."""

TOP = ("seeds", "device", "engine", "checkpoint_every", "checkpoint_seconds")
SECTIONS = ("data", "model", "schedule", "attack", "evaluation")
"""Where a key of another section may belong."""


def read_experiment(path: Path, changes: Sequence[str] = ()) -> Experiment:
    """Read the experiment in a file, with ``key=value`` changes from the command line."""
    content = read_toml(path)
    for change in changes:
        apply_change(content, change)
    return parse_experiment(content, str(path))


def parse_experiment(content: Mapping[str, Any], where: str) -> Experiment:
    """Parse an experiment from plain values; ``where`` is their name in messages."""
    content = _with_current_names(content)
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        faults = [_explain(fault, content) for fault in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{where}: {fault}" for fault in dict.fromkeys(faults))) from error


def _with_current_names(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Rename the options of methods that an earlier version saved under another name."""
    methods = content.get("methods")
    if not isinstance(methods, list):
        return content
    return {**content, "methods": [_renamed(method) for method in cast("list[Any]", methods)]}


def _renamed(method: Any) -> Any:
    if not isinstance(method, Mapping):
        return method
    options = dict(cast("Mapping[str, Any]", method))
    for old, new in RENAMED.items():
        if old in options and new not in options:
            options[new] = options.pop(old)
    return options


def apply_change(content: dict[str, Any], change: str) -> None:
    """Set ``section.key=value``, or ``methods.wafl.gamma=1``: the value is TOML, and a word needs no quotes."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change!r} must be key=value, such as schedule.rounds=50")
    try:
        value: Any = parsed_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    except ValueError as error:
        raise ConfigError(f"--set {key.strip()}: {error}") from None
    *path, last = (step.strip() for step in key.split("."))
    target: Any = content
    for depth, step in enumerate(path):
        place = _place(target, step, path[:depth], change)
        target = target.setdefault(place, {}) if isinstance(target, dict) else target[place]
    target[_place(target, last, path, change)] = value


def _place(target: Any, step: str, path: Sequence[str], change: str) -> str | int:
    """Return the key or the index that a step of a change means in ``target``, which is at ``path``."""
    if isinstance(target, dict):
        return step
    if not isinstance(target, list):
        raise ConfigError(f"--set {change!r}: {'.'.join(path)} is a value and has no key {step!r}")
    names = [_name_of(item).lower() for item in cast("list[Any]", target)]
    if step.isdecimal() and int(step) < len(names):
        return int(step)
    if step.lower() in names:
        return names.index(step.lower())
    known = ", ".join(filter(None, names)) or "none by name"
    raise ConfigError(f"--set {change!r}: no entry {step!r}; there are {len(names)}: {known}")


def _name_of(item: Any) -> str:
    """Return the name of a method in a list; other items have none."""
    if not isinstance(item, dict):
        return ""
    table = cast("dict[str, Any]", item)
    return str(table["name"]) if "name" in table else label_of(str(table.get("method", "")))


def _explain(fault: Any, content: Mapping[str, Any]) -> str:
    kind, given = fault["type"], fault.get("input")
    keys = _keys_to(fault["loc"], last_is_a_key=kind == "extra_forbidden")
    # A key may hold anything, and must not break the line.
    key = ".".join(str(step).encode("unicode_escape").decode() for step in keys) or "the file"
    if kind == "extra_forbidden":
        names = _valid_names(keys[:-1], content)
        near = nearest(str(keys[-1]), names)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(names))}"
        if home := _home_of(str(keys[-1]), str(keys[0])):
            hint = f"it belongs {home}"
        return f"unknown key {key}: {hint}"
    if kind == "missing":
        return f"{key} is missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _explain_choice(key, keys, fault)
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    shown = "" if isinstance(given, dict | BaseModel) else f" = {given!r}"
    name = re.match(r"(\w+)=", message)
    if name and isinstance(given, dict) and name[1] in given:  # a table that was refused for one of its values
        key = f"{key}.{name[1]}"
    return f"{key}{shown}: {message}"


def _explain_choice(key: str, keys: Sequence[Any], fault: Any) -> str:
    """Explain an error about a method, or a part of one, that does not exist."""
    tables, chosen_by = (PART_TABLES[keys[-1]], "kind") if len(keys) > 2 else (METHOD_TABLES, "method")
    names = ", ".join(name for name in tables if name != OWN)
    if fault["type"] == "union_tag_invalid":
        given = str(fault["ctx"]["tag"])
        near = nearest(given, tables, 0.4)
        hint = f": did you mean {near}?" if near else ""
        return f"{key}.{chosen_by} = {given!r} must be one of {names}{hint}"
    if not isinstance(fault.get("input"), dict):
        return f"{key} = {fault.get('input')!r}: should be a valid dictionary"
    return f"{key}.{chosen_by} is missing: one of {names}"


def _keys_to(loc: Sequence[Any], *, last_is_a_key: bool) -> list[Any]:
    """Return the keys that lead to a fault, without pydantic's names of tables and branches."""
    *inside, last = loc or (None,)
    keys = [step for step in inside if step not in BRANCHES]
    if last is not None and (last_is_a_key or last not in BRANCHES):
        keys.append(last)
    if keys[:1] == ["methods"]:  # methods.0.WAFL.server.adam.rate is methods.0.server.rate
        del keys[2:3]
        index = 2
        while keys[index : index + 1] and keys[index] in PART_TABLES:
            index += 1
            del keys[index : index + 1]
    return keys


def _home_of(key: str, section: str) -> str:
    """Return where an experiment file has a key that another section lacks; empty if nowhere."""
    if key in TOP:
        return "at the top of the file, before the first section"
    homes = [name for name in SECTIONS if section not in (name, "methods") and key in _valid_names([name], {})]
    return f"in [{homes[0]}]" if homes else ""


def _valid_names(keys: Sequence[Any], content: Mapping[str, Any]) -> list[str]:
    """Return the valid keys of a section."""
    if not keys:
        return list(Experiment.model_fields)
    if keys[0] == "methods":
        table: Any = content["methods"][keys[1]]
        tables: Mapping[str, type[Section]] = METHOD_TABLES
        for slot in keys[2:]:
            table, tables = table[slot], PART_TABLES[slot]
        name = table["kind" if len(keys) > 2 else "method"]
        return list(tables[name if name in tables else OWN].model_fields)
    if keys[:2] == ["tune", "space"]:
        return list(Between.model_fields)
    annotation = Experiment.model_fields[keys[0]].annotation
    members = (getattr(each, "__origin__", each) for each in (annotation, *get_args(annotation)))  # of Annotated
    (kind,) = (each for each in members if isinstance(each, type) and each is not NoneType)
    return list(kind.model_fields if issubclass(kind, Section) else options_of(kind))
