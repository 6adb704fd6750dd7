"""The interface of every experiment: a registration, a ``run`` and a ``page``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Experiment:
    """An experiment, which ``python -m research NAME`` runs.

    Args:
        name: the name on the command line.
        title: one line for the list.
        module: the module that has its ``main(arguments)`` and, if its tables are generated, its ``page()``.
        shown_on: the page with its results.
        file: its registration below ``experiments/``: what is run and how it is decided. None if it is exploratory.
        arguments: what ``main`` gets before the user's own arguments.
    """

    name: str
    title: str
    module: str
    shown_on: str
    file: str | None = None
    arguments: tuple[str, ...] = ()

    @property
    def registration(self) -> Path | None:
        """The file that was committed before any result."""
        return None if self.file is None else ROOT / "experiments" / self.file

    def run(self, arguments: Sequence[str]) -> None:
        """Run it with these arguments of the command line."""
        self._module.main([*self.arguments, *arguments])

    def page(self) -> Mapping[str, str]:
        """Return the tables of its page by name, from its committed numbers; empty if they are copied by hand."""
        return self._module.page() if hasattr(self._module, "page") else {}

    @property
    def _module(self) -> Any:
        return import_module(self.module)
