"""Define the box that limits moved examples: by default, the bounds that the data declare.

Everything that moves examples has an option ``bounds``: ``"data"``, the default, a box ``(low, high)``, or None, which
lets examples leave. ``"data"`` is resolved once, where clients are known (``Mover.within``); without clients it means
None.
"""

import math
from typing import TYPE_CHECKING, Any, Final, Literal

from wafl.base.errors import UnitWarning, warn_user

if TYPE_CHECKING:
    from torch import Tensor

DATA: Final = "data"
Box = tuple[float, float]
Bounds = Box | Literal["data"] | None


def check_box(box: Any) -> Box | None:
    """Return the box as ``(low, high)``, or None for no box; raise ValueError for any other value."""
    if box is None:
        return None
    if isinstance(box, str):
        raise ValueError(f"bounds={box!r} must be two numbers (low, high), not text")
    try:
        low, high = (float(value) for value in box)
    except (TypeError, ValueError):
        raise ValueError(f"bounds={box!r} must be two numbers (low, high)") from None
    if not low < high:
        raise ValueError(f"bounds={tuple(box)} must be (low, high) with low < high")
    return low, high


def check_bounds(bounds: Any) -> Bounds:
    """Return the bounds as a box, None, or ``"data"``; raise ValueError for any other value."""
    if isinstance(bounds, str):
        if bounds != DATA:
            raise ValueError(f"bounds={bounds!r} must be 'data', None or two numbers (low, high)")
        return DATA
    return check_box(bounds)


def read_bounds(text: str) -> Bounds:
    """Parse the bounds in a command's option: ``data``, ``none`` or ``LOW,HIGH``."""
    if text in (DATA, "none"):
        return DATA if text == DATA else None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"bounds={text!r} must be data, none or two numbers, LOW,HIGH") from None
    return check_box((low, high))


def box_of(bounds: Bounds, declared: Box | None = None) -> Box | None:
    """Return the box that the bounds mean on data with this declared box."""
    return declared if bounds == DATA else bounds


def in_words(bounds: Bounds) -> str:
    """Describe the bounds for a label.

    >>> in_words((0.0, 1.0)), in_words(None)
    ('within [0, 1]', 'unbounded')
    """
    if bounds == DATA:
        return "within the bounds of the data"
    box = box_of(bounds)
    return "unbounded" if box is None else f"within [{box[0]:g}, {box[1]:g}]"


def is_finite(box: Box | None) -> bool:
    """Return whether there is a box and both of its ends are finite."""
    return box is not None and all(map(math.isfinite, box))


def diameter(box: Box, norm: float, features: int) -> float:
    """Return the largest distance between two examples whose values all lie in a box.

    >>> diameter((0.0, 1.0), math.inf, 64), diameter((-1.0, 1.0), 2, 64), diameter((0.0, 1.0), 1, 64)
    (1.0, 16.0, 64.0)
    """
    return (box[1] - box[0]) * (1.0 if norm == math.inf else features ** (1.0 / norm))


def warn_of_size(name: str, size: float, norm: float, box: Box | None, features: int, unit: str) -> None:
    """Warn if a size lets every example move anywhere in the box of the data."""
    if box is None or not is_finite(box) or not size > diameter(box, norm, features):
        return
    levels = size * (box[1] - box[0]) / 255.0
    warn_user(
        f"{name}={size:g} is beyond the diameter of the data, {diameter(box, norm, features):g}: they lie in "
        f"[{box[0]:g}, {box[1]:g}] ({unit}), and {name} is in the same unit. If {size:g} counts levels from 0 to 255, "
        f"pass {name}={levels:.3g}",
        UnitWarning,
    )


def warn_of_inputs(x: "Tensor", box: Box | None, unit: str) -> None:
    """Warn if examples lie farther outside the box of the training data than the box is wide."""
    if box is None or not is_finite(box) or not x.numel():
        return
    low, high = map(float, x.aminmax())
    width = box[1] - box[0]
    if low < box[0] - width or high > box[1] + width:
        warn_user(
            f"x has values from {low:g} to {high:g}, and the model was trained on values in [{box[0]:g}, {box[1]:g}] "
            f"({unit}): prepare x as in training",
            UnitWarning,
        )
