"""Methods: :class:`Method`, which any parts make, and the named ones, one file per family.

A named method is added in its family's file alone: each preset there is found, with its citation and its equation.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from wafl.methods import attacked, averaging, ball, learned, local, penalties, reweighted, servers
from wafl.methods.method import Method
from wafl.methods.preset import Preset

__all__ = ["FAMILIES", "METHODS", "Method", "not_a_method"]

FAMILIES: tuple[ModuleType, ...] = (averaging, ball, attacked, penalties, learned, reweighted, local, servers)
"""The files of the named methods."""

METHODS: dict[str, Preset[...]] = {
    preset.__name__: preset
    for preset in sorted(
        (found for family in FAMILIES for found in vars(family).values() if isinstance(found, Preset)),
        key=lambda preset: preset.options.about.place,
    )
}
"""Every named method, by its name."""


def not_a_method(given: Any) -> str:
    """Why this is no method, in one line with the remedy: a name, or a preset that was not called."""
    name = given.__name__ if isinstance(given, Preset) else given
    meant = [known for known in METHODS if isinstance(name, str) and known.lower() == name.lower()]
    what = f"wafl.{name}, which is not called" if isinstance(given, Preset) else repr(given)
    hint = f"pass wafl.{meant[0]}(), or " if meant else ""
    names = ", ".join(f"wafl.{name}(...)" for name in METHODS)
    return f"unknown method {what}: {hint}use one of {names}, or wafl.Method(...)"
