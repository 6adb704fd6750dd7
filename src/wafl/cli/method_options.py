"""Turn options of methods and attacks into flags, from the fields that also check them and experiment files."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from wafl.base.bounds import read_bounds
from wafl.base.options import Box, Choice, Matrix, Option, Range
from wafl.cli.terminal import parse_choice
from wafl.config.known import describe_option, known_attacks, known_methods, options_by_name, purposes

PANEL = "Options of the methods (without a file)"
ATTACK_PANEL = "Options of the attacks and shifts"


def method_options() -> dict[str, dict[str, Option]]:
    """Return the methods that have an option, by the option's name, each with its declaration of the option."""
    return options_by_name({name: method.options for name, method in known_methods().items()})


def with_method_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one flag per method option without a flag in the command; values arrive as ``options``."""
    taken = inspect.signature(command).parameters
    flags = {
        name: _annotation(name, owners, " ".join(purposes(owners)), PANEL)
        for name, owners in method_options().items()
        if name not in taken
    }
    return _with_flags(command, flags)


def with_attack_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one flag per option of an attack or a shift; given values arrive as ``options``."""
    return _with_flags(command, {name: _attack_flag(name, owners) for name, owners in attack_options().items()})


def attack_options() -> dict[str, dict[str, Option]]:
    """Return the attacks and shifts that have an option, by the option's name."""
    attacks = known_attacks()
    return options_by_name(
        {name: attack.options for name, attack in attacks.items()}, first=[attack.size for attack in attacks.values()]
    )


def _with_flags(command: Callable[..., None], flags: Mapping[str, Any]) -> Callable[..., None]:
    """Return the command with more flags, given by their annotations."""
    signature = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    kept = [each.replace(kind=keyword) for name, each in signature.parameters.items() if name != "options"]
    added = [inspect.Parameter(name, keyword, default=None, annotation=flag) for name, flag in flags.items()]

    @wraps(command)
    def with_flags(*arguments: Any, **values: Any) -> None:
        given = {name: value for name in flags if (value := values.pop(name, None)) is not None}
        command(*arguments, **values, options=given)

    with_flags.__signature__ = signature.replace(parameters=[*kept, *added])  # pyright: ignore[reportAttributeAccessIssue]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in (*kept, *added)}
    return with_flags


def read_options(options: Mapping[str, Any], known: Mapping[str, Mapping[str, Option]]) -> dict[str, Any]:
    """Parse the values of flags that arrive as text, such as a choice or a box."""
    texts = {name: _as_text(name, known[name]) for name in options}
    return {name: value if (text := texts[name]) is None else text[1](value) for name, value in options.items()}


def _as_text(name: str, owners: Mapping[str, Option]) -> tuple[str, Callable[[str], Any]] | None:
    """Return an option's text form for the help, and its parser; None if its type is sufficient."""
    limits = [option.limits for option in owners.values()]
    choices = sorted({value for each in limits if isinstance(each, Choice) for value in each.values})
    word = next((each.word for each in limits if isinstance(each, Range) and each.word is not None), None)
    if choices:
        return f"[{'|'.join(f'{value:g}' for value in choices)}]", lambda text: parse_choice(name, text, choices)
    if word is not None:
        return f"[NUMBER|{word}]", lambda text: parse_number(name, text, word)
    if any(isinstance(each, Box) for each in limits):
        return "[data|none|LOW,HIGH]", read_bounds
    return ("[clients|NUMBER,NUMBER,...]", _cost_matrix) if any(isinstance(each, Matrix) for each in limits) else None


def _cost_matrix(text: str) -> Any:
    from wafl.objectives.ball.cost_matrix import read_cost_matrix

    return read_cost_matrix(text)


def parse_number(name: str, text: str, word: str) -> float | str:
    """Parse a number, or the word that replaces one."""
    try:
        return word if text == word else float(text)
    except ValueError:
        raise ValueError(f"{name}={text} must be a number or {word}") from None


def _attack_flag(name: str, owners: Mapping[str, Option]) -> Any:
    """Return the annotation of a flag for an option of attacks; a size may have several values."""
    if any(known_attacks()[owner].size == name for owner in owners):
        text = f"{describe_option(owners)} Several sizes with commas."
        return Annotated[str | None, typer.Option(help=text, metavar="NUMBER,...", rich_help_panel=ATTACK_PANEL)]
    return _annotation(name, owners, describe_option(owners), ATTACK_PANEL)


def _annotation(name: str, owners: Mapping[str, Option], text: str, panel: str) -> Any:
    given = _as_text(name, owners)
    kind, metavar = (next(iter(owners.values())).kind, None) if given is None else (str, given[0])
    flags = [f"--{name.replace('_', '-')}"] if kind is bool else []
    return Annotated[kind | None, typer.Option(*flags, help=text, metavar=metavar, rich_help_panel=panel)]
