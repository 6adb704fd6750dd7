"""What each named method is, in words, for ``docs/methods.md`` and, by ``config/methods.json``, for the command."""

import inspect
import re
from typing import Annotated, Any

from wafl.base.options import Option, frozen, options_of
from wafl.methods import METHODS
from wafl.methods.method import AVERAGING, DESCENT, PARTS, Method
from wafl.methods.preset import About
from wafl.weights import Round


@frozen
class Entry:
    """One named method."""

    name: Annotated[str, "What it is called in Python, in experiment files and in commands."]
    summary: Annotated[str, "What it does, in a sentence or two."]
    moves: Annotated[str, "What it does differently from FedAvg."]
    sends: Annotated[
        str,
        "What leaves a client: once its size (the number of its examples), and in each round its model, its loss "
        "and further vectors by name.",
    ]
    options: Annotated[tuple[Option, ...], "Its own options, without the parts that can be replaced as a whole."]
    about: Annotated[About, "Its paper, an equation, and when to use it."]


def catalog() -> list[Entry]:
    """All named methods, in the order of the list."""
    return [entry(name) for name in METHODS]


def entry(name: str) -> Entry:
    """What is said about one named method."""
    preset = METHODS[name]
    kind: Any = preset.options
    shown = (option for option in options_of(kind).values() if option.plain)
    own = tuple(option for option in shown if option.name not in (*PARTS, "center"))
    method = preset()
    return Entry(name, summary_of(kind), _moves(method), _sends(method), own, preset.options.about)


def summary_of(what: Any) -> str:
    """The first paragraph of a docstring on one line, without references to classes."""
    first = " ".join(inspect.cleandoc(what.__doc__ or "").split("\n\n")[0].split())
    plain = re.sub(r":\w+:`~?([\w.]+)`", r"\1", first.split(" (see :class:")[0])
    return plain.rstrip(".").replace("``", "`") + "."


def _moves(method: Method) -> str:
    parts = {
        "examples": method.objective is not None and method.objective.moves,
        "the loss": method.objective is not None and not method.objective.moves,
        "client weights": method.client_weights.learns,
        "local steps": method.local != DESCENT,
        "the server's step": method.server != AVERAGING,
    }
    return ", ".join(name for name, moved in parts.items() if moved) or "nothing"


def _sends(method: Method) -> str:
    """The names of what leaves a client, in order."""
    rule, model = method.client_weights, ", ".join(["model", *method.local.sends])
    query = rule.loss_query(Round(0, 0, 2, 2, 1))
    if query is None:
        sent = f"{model}, loss"
    else:
        first = ", ".join(["loss", *method.local.reports])
        sent = f"{model}, snapshot, then loss" if query.step else f"{first}, then {model}"
    return f"size, {sent}" if rule.needs_sizes(1) else sent
