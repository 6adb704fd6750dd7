"""Methods: :class:`Method`, which any parts make, and the named ones, one file per family.

A named method is added in its family's file alone: each preset there is found, with its citation and its equation.
"""

from types import ModuleType
from typing import Any

from wafl.base.near import nearest
from wafl.methods import attacked, augmented, averaging, ball, learned, penalties, reweighted, servers
from wafl.methods.method import Method
from wafl.methods.preset import Preset

__all__ = ["FAMILIES", "METHODS", "Method", "not_a_method"]

FAMILIES: tuple[ModuleType, ...] = (averaging, ball, attacked, augmented, penalties, learned, reweighted, servers)
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
    if isinstance(given, Preset):
        return f"wafl.{given.__name__} is not called: pass wafl.{given.__name__}(), with its options if you like"
    if isinstance(given, str) and (near := nearest(given, METHODS)) is not None:
        return f"unknown method {given!r}: did you mean wafl.{near}()?"
    names = ", ".join(f"wafl.{name}(...)" for name in METHODS)
    return f"unknown method {given!r}: use one of {names}, or wafl.Method(...)"
