"""Sizes and inputs in another unit than the data: they compute like any others, and mean something else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wafl.base.bounds import Box, is_finite
from wafl.base.errors import UnitWarning, warn_user

if TYPE_CHECKING:
    from torch import Tensor


def diameter(box: Box, norm: float, features: int) -> float:
    """The largest distance between two examples whose values all lie in a box.

    >>> diameter((0.0, 1.0), math.inf, 64), diameter((-1.0, 1.0), 2, 64), diameter((0.0, 1.0), 1, 64)
    (1.0, 16.0, 64.0)
    """
    return (box[1] - box[0]) * (1.0 if norm == math.inf else features ** (1.0 / norm))


def warn_of_size(name: str, size: float, norm: float, box: Box | None, features: int, unit: str) -> None:
    """Warn if a size lets every example move anywhere in the box of the data."""
    if box is None or not is_finite(box) or not size > diameter(box, norm, features):
        return
    warn_user(
        f"{name}={size:g} is beyond the diameter of the data, {diameter(box, norm, features):g}: they lie in "
        f"[{box[0]:g}, {box[1]:g}] ({unit}), and {name} is in the same unit",
        UnitWarning,
    )


def warn_of_inputs(x: Tensor, box: Box | None, unit: str) -> None:
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
