"""The style of the evidence figures: large text, thick lines, and one color per method."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from wafl.report.plotting import color_of

WIDTH = 8.0
"""The width of a figure in inches; on a page it is about as wide, so sizes of texts are what a reader sees."""
TEXT = 13
LINE = 2.6
OTHER_NAMES = {"random moves": "Moved", "tuned decay": "FedAvg"}
"""The method behind a name that does not begin with a method's."""


def large() -> AbstractContextManager[Any]:
    """Return a context in which figures have large text and thick lines."""
    import matplotlib

    sizes: dict[Any, Any] = {
        "font.size": TEXT,
        "axes.titlesize": TEXT,
        "legend.fontsize": TEXT,
        "figure.titlesize": TEXT + 1,
    }
    lines: dict[Any, Any] = {"lines.linewidth": LINE, "lines.markersize": 7.0, "axes.linewidth": 1.2}
    return matplotlib.rc_context({**sizes, **lines})


def method_color(name: str) -> str:
    """Return the color of a method, which is the same in every figure.

    >>> method_color("FedAvg with decay") == method_color("FedAvg")
    True
    """
    color = color_of(OTHER_NAMES.get(name, name))
    if color is None:
        raise ValueError(f"{name!r} does not begin with a method's name")
    return color
