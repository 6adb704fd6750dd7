"""The options of methods as flags of a command, from the same fields that methods check and experiment files read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from wafl.base.bounds import read_bounds
from wafl.base.options import Box, Choice, Option, Range, Shaped, options_of
from wafl.config.method_keys import PARTS
from wafl.methods import METHODS
from wafl.objectives.ball.shape import read_shape

PANEL = "Options of the methods (without a file)"


def method_options(leave_out: Collection[str]) -> dict[str, dict[str, Option]]:
    """By name of an option: the methods that have it, each with its own description."""
    found: dict[str, dict[str, Option]] = {}
    for method, preset in METHODS.items():
        for name, option in options_of(preset.options).items():
            if name not in PARTS and name not in leave_out:
                found.setdefault(name, {})[method] = option
    return found


def with_method_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one flag per option of any method; those that are given reach it as ``options``.

    A flag that the command has itself keeps its meaning.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "options"]
    known = method_options([parameter.name for parameter in own])
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(name, owners))
        for name, owners in known.items()
    ]

    @wraps(command)
    def with_flags(*arguments: Any, **values: Any) -> None:
        given = {name: value for name in known if (value := values.pop(name, None)) is not None}
        command(*arguments, **values, options=given)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    with_flags.__signature__ = signature.replace(parameters=[*parameters, *flags])  # pyright: ignore[reportAttributeAccessIssue]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *flags)}
    return with_flags


def read_options(options: dict[str, Any]) -> dict[str, Any]:
    """The values of the flags as methods take them: a choice or a box is made of numbers instead of its text."""
    known = method_options(())
    return {name: _read(name, value, known[name]) for name, value in options.items()}


def _read(name: str, value: Any, owners: Mapping[str, Option]) -> Any:
    if any(isinstance(option.limits, Box) for option in owners.values()):
        return read_bounds(value)
    if any(isinstance(option.limits, Shaped) for option in owners.values()):
        return read_shape(value)
    choices = _choices(owners)
    if choices:
        return parse_choice(name, value, choices)
    word = _word(owners)
    return value if word is None else parse_number(name, value, word)


def _choices(owners: Mapping[str, Option]) -> list[float]:
    """The values that an option may have in any method, if they are a few."""
    limits = [option.limits for option in owners.values()]
    return list(dict.fromkeys(value for each in limits if isinstance(each, Choice) for value in each.values))


def parse_choice(name: str, text: str, values: Collection[float]) -> float:
    """One of a few numbers by its text."""
    names = {f"{value:g}": value for value in values}
    if text not in names:
        raise ValueError(f"{name}={text} must be one of {', '.join(names)}")
    return names[text]


def _word(owners: Mapping[str, Option]) -> str | None:
    """What an option may be in some method instead of a number."""
    limits = [option.limits for option in owners.values()]
    return next((each.word for each in limits if isinstance(each, Range) and each.word is not None), None)


def parse_number(name: str, text: str, word: str) -> float | str:
    """A number by its text, or the word that stands for one."""
    try:
        return word if text == word else float(text)
    except ValueError:
        raise ValueError(f"{name}={text} must be a number or {word}") from None


def _flag(name: str, owners: Mapping[str, Option]) -> Any:
    """The annotation of a flag: its type, and a help text that says which methods have it."""
    first, choices = next(iter(owners.values())), _choices(owners)
    kind, metavar = first.kind, None
    if choices:
        kind, metavar = str, f"[{'|'.join(f'{value:g}' for value in choices)}]"
    elif (word := _word(owners)) is not None:
        kind, metavar = str, f"[NUMBER|{word}]"
    elif isinstance(first.limits, Box):
        kind, metavar = str, "[data|none|LOW,HIGH]"
    elif isinstance(first.limits, Shaped):
        kind, metavar = str, "[clients|NUMBER,NUMBER,...]"
    methods: dict[str, list[str]] = {}
    for method, option in owners.items():
        methods.setdefault(option.doc, []).append(method)
    text = " ".join(f"{', '.join(names)}: {doc[:1].lower()}{doc[1:]}" for doc, names in methods.items())
    flags = [f"--{name.replace('_', '-')}"] if kind is bool else []
    return Annotated[kind | None, typer.Option(*flags, help=text, metavar=metavar, rich_help_panel=PANEL)]
