"""``python tools/methods_page.py`` writes what follows from the lists of methods and parts.

These are ``docs/methods.md``, ``methods.json``, and the lines of the methods in ``wafl/__init__.pyi``. A test fails if
they are not up to date.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from wafl import weights
from wafl.base.options import Option, frozen, options_of
from wafl.config.known import KINDS, default_of, range_of
from wafl.local import LOCAL_STEPS
from wafl.methods import METHODS
from wafl.methods.method import AVERAGING, DESCENT, Method
from wafl.methods.method import PARTS as REPLACED
from wafl.methods.preset import About
from wafl.servers import AGGREGATES, OPTIMIZERS
from wafl.weights import Round

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
LIST = Path(__file__).parents[1] / "src" / "wafl" / "config" / "methods.json"
STUB = Path(__file__).parents[1] / "src" / "wafl" / "__init__.pyi"
HEAD = """\
# Methods

This page shows how to choose a method: what it minimizes, what clients send, and which options it takes. Start with
WAFL and FedAvg; the table shows how the other methods differ.

    wafl methods          # this list
    wafl methods DRFA     # everything about one method

In Python, a method is a value that you pass to `wafl.fit`:

```python
run = wafl.fit(model, clients, wafl.DRFA(), rounds=50, local_epochs=2)
```

A method is a preset of four parts: an objective, client weights, a local step and a server. Any part works with the
parts of any other method ([extending.md](extending.md)). The end of this page lists the parts that an experiment file
can name, and [weights.md](weights.md) lists more rules for the weights.

Below, `f_i` is the loss of client i, and `lambda_i` or `p_i` is the client's weight. In the table, *changes* is what a
method does differently from FedAvg. A client's *size* is the number of its examples, which the client sends once. If a
loss is sent with a model, it is the loss on the client's first batch. If the server requests a loss separately, it is
the loss on all of the client's examples. [flower.md](flower.md) lists all values. If several methods share an option,
the first of them describes it, and the others link there. `tools/methods_page.py` writes this page.
"""
PARTS = {"Client weights": weights.RULES, "Optimizers": OPTIMIZERS, "Servers": AGGREGATES, "Local steps": LOCAL_STEPS}


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
    """Return the entry of one named method."""
    preset = METHODS[name]
    kind: Any = preset.options
    shown = (option for option in options_of(kind).values() if option.plain)
    options = tuple(option for option in shown if option.name not in (*REPLACED, "center"))
    method = preset()
    return Entry(name, summary_of(kind), _moves(method), _sends(method), options, preset.options.about)


def summary_of(what: Any) -> str:
    """Return the first paragraph of a docstring on one line, without references to classes."""
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
    """Return the names of the quantities that leave a client, in order."""
    rule, model = method.client_weights, ", ".join(["model", *method.local.sends])
    query = rule.loss_query(Round(0, 0, 2, 2, 1))
    if query is None:
        sent = f"{model}, loss"
    else:
        first = ", ".join(["loss", *method.local.reports])
        sent = f"{model}, snapshot, then loss" if query.step else f"{first}, then {model}"
    return f"size, {sent}" if rule.needs_sizes(1) else sent


def page() -> str:
    """Return the text of ``docs/methods.md``."""
    entries = catalog()
    rows = "\n".join(f"| [{each.name}](#{each.name.lower()}) | {each.moves} | {each.sends} |" for each in entries)
    table = f"| method | changes | clients send |\n| --- | --- | --- |\n{rows}\n"
    first: dict[tuple[str, ...], str] = {}  # the method that lists an option, to which later ones link
    for each in entries:
        for option in each.options:
            first.setdefault(_words(option), each.name)
    parts = (_parts(title, kinds) for title, kinds in PARTS.items())
    return "\n".join([HEAD, table, *(_section(each, first) for each in entries), *parts])


def _words(option: Option) -> tuple[str, str, str, str]:
    return option.name, default_of(option), range_of(option), option.doc


def _section(each: Entry, first: Mapping[tuple[str, ...], str]) -> str:
    equation = f"```math\n{each.about.equation}\n```"
    parts = [f"## {each.name}", f"{each.summary} {each.about.paper}. **When.** {each.about.use}", equation]
    lines: list[str] = []
    shared: dict[str, list[str]] = {}
    for option in each.options:
        lister = first[_words(option)]
        if lister == each.name:
            lines.append(_line(option))
        else:
            shared.setdefault(lister, []).append(f"`{option.name}`")
    links = [f"{', '.join(names)} as for [{lister}](#{lister.lower()})" for lister, names in shared.items()]
    lines += [f"- {'; '.join(links)}."] if links else []
    if lines:
        parts.append("\n\n".join(['<details markdown="1"><summary>Options</summary>', "\n".join(lines), "</details>"]))
    return "\n\n".join(parts) + "\n"


def _line(option: Option) -> str:
    name, default, allowed, doc = _words(option)
    facts = [f"default {default}" if option.default is not None else "", allowed]
    inside = "; ".join(word for word in facts if word)
    return f"- `{name}`{f' ({inside})' if inside else ''}: {doc}"


def _parts(title: str, kinds: Mapping[str, type]) -> str:
    lines = [f"## {title}", ""]
    for name, kind in kinds.items():
        fields_of = options_of(kind)
        options = f" Options: {', '.join(f'`{option}`' for option in fields_of)}." if fields_of else ""
        lines.append(f"- `{name}`: {summary_of(kind)}{options}")
    return "\n".join(lines) + "\n"


def methods_list() -> str:
    """Return the text of ``methods.json``, which the command reads instead of the methods themselves."""
    return "[\n" + ",\n".join(json.dumps(_listed(each)) for each in catalog()) + "\n]\n"


def _listed(each: Entry) -> dict[str, Any]:
    words = {"name": each.name, "summary": each.summary, "moves": each.moves, "sends": each.sends}
    about = {"use": each.about.use, "paper": each.about.paper, "short": each.about.short}
    return {**words, **about, "options": [option_as_json(option) for option in each.options]}


def option_as_json(option: Option) -> dict[str, Any]:
    """Return an option as plain data; ``wafl.config.known`` reads it."""
    kind = option.kind.__name__ if option.kind in KINDS.values() else "str"
    content = {"doc": option.doc, "default": option.default, "optional": option.optional}
    return {"name": option.name, "kind": kind, "limits": _limits(option.limits), **content}


def _limits(limits: Any) -> dict[str, Any] | None:
    """Return the name of a class of limits, and its fields that are not the default."""
    if limits is None:
        return None
    values = {field.name: getattr(limits, field.name) for field in fields(limits)}
    changed = {field.name: values[field.name] for field in fields(limits) if values[field.name] != field.default}
    return {
        type(limits).__name__: {key: _limits(each) if hasattr(each, "check") else each for key, each in changed.items()}
    }


def stub() -> str:
    """Return the text of ``wafl/__init__.pyi`` with one import per method, in the order that ruff asks for."""
    lines = STUB.read_text().splitlines()
    folder = [line for line in lines if line.startswith("from .methods.")]
    others = [line for line in folder if line.startswith("from .methods.method ")]
    named = [
        f"from .{preset.options.__module__.removeprefix('wafl.')} import {name} as {name}"
        for name, preset in METHODS.items()
    ]
    first = lines.index(folder[0])
    rest = [line for line in lines[first:] if line not in folder]
    return "\n".join([*lines[:first], *sorted([*others, *named], key=_order), *rest]) + "\n"


def _order(line: str) -> tuple[str, bool, str]:
    """Return what ruff sorts imports by: the module, then names in capitals, then others."""
    _, module, _, name, *_ = line.split()
    return module, not name.isupper(), name


if __name__ == "__main__":
    PAGE.write_text(page())
    LIST.write_text(methods_list())
    STUB.write_text(stub())
