"""Old names in experiment files, registrations and recorded results, with their names today.

These files never change, because results are only valid with the bytes that were committed before them. Readers of
such a file translate its names with :func:`current` and :func:`command`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from research.catalog import PAPER
from wafl.config.known import RENAMED

MODULES = {
    "wafl.lab.domains": "research.domains",
    "wafl.lab.reproduction.placement": "research.reproduction.placement",
}
"""Modules of functions that files name as ``module:function``."""
METHODS: dict[str, str] = {}
"""Values of the key ``method``."""
OPTIONS = RENAMED
"""Keys of tables: options of methods, schedules, data and models."""
COMMANDS = {
    "wafl reproduce promises": "python -m research promises",
    "wafl reproduce": "python -m research reproduce",
    "wafl leaderboard": "python -m research leaderboard",
    "wafl bench": "python -m benchmarks.contest",
}
"""The beginnings of recorded commands; the first that matches is replaced."""
FIGURES = {Path(each.file or "").stem: each.name for each in PAPER}
"""The names of the paper's figures and tables in commands."""


def current(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of a file with today's names of modules, methods and options.

    >>> current({"data": {"source": "wafl.lab.domains:to_usps"}})
    {'data': {'source': 'research.domains:to_usps'}}
    """
    return {OPTIONS.get(key, key): _value(key, value) for key, value in table.items()}


def _value(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return current(cast("Mapping[str, Any]", value))
    if isinstance(value, list):
        return [_value(key, each) for each in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    module, colon, function = value.partition(":")
    if colon:
        return f"{MODULES.get(module, module)}:{function}"
    return METHODS.get(value, value) if key == "method" else value


def command(recorded: str) -> str:
    """Return today's command for one that results have recorded.

    >>> command("wafl reproduce fig-attacked-share --protocol fair")
    'python -m research reproduce figure-4 --protocol fair'
    """
    for old, new in COMMANDS.items():
        if recorded.startswith(old):
            return " ".join(FIGURES.get(word, word) for word in (new + recorded.removeprefix(old)).split())
    return recorded
