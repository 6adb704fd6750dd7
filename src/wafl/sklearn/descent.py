"""Minimize a convex function that may have kinks, by BFGS with a weak Wolfe line search.

Lewis and Overton, "Nonsmooth optimization via quasi-Newton methods", Mathematical Programming 2013: the method is
superlinear where a function is smooth, and converges linearly where its minimum lies on kinks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Numbers in float64."""

Function = Callable[[Array], tuple[float, Array]]
"""A function that returns the value at a point, and a subgradient there."""

DESCENT, CURVATURE, TRIALS = 1e-4, 0.9, 40
STEPS = 10
"""The number of steps whose joint gain must be negligible for a descent to end."""


@dataclass(frozen=True)
class Minimum:
    """The best point, its value, the number of steps, and whether the last steps gained nothing."""

    point: Array
    value: float
    steps: int
    converged: bool


def minimize(function: Function, point: Array, tol: float, max_iter: int) -> Minimum:
    """Descend from ``point`` until ten steps together lower the value by less than ``tol`` times the value.

    >>> minimum = minimize(lambda z: (float(np.abs(z).sum()), np.sign(z)), np.array([3.0, -1.0]), 1e-9, 500)
    >>> minimum.converged, bool(minimum.value < 1e-6)
    (True, True)
    """
    value, slope = function(point)
    inverse = np.eye(len(point))
    values = [value]
    for step in range(1, max_iter + 1):
        direction = -inverse @ slope
        if not slope @ direction < 0.0:
            inverse, direction = np.eye(len(point)), -slope
        step_taken = _search(function, point, value, slope, direction)
        if step_taken is None:
            return Minimum(point, value, step, True)
        new_point, new_value, new_slope = step_taken
        inverse = _updated(inverse, new_point - point, new_slope - slope, first=step == 1)
        point, value, slope = new_point, new_value, new_slope
        values.append(value)
        if len(values) > STEPS and values[-1 - STEPS] - value <= tol * abs(value):
            return Minimum(point, value, step, True)
    return Minimum(point, value, max_iter, False)


def _search(
    function: Function, point: Array, value: float, slope: Array, direction: Array
) -> tuple[Array, float, Array] | None:
    """Return a point along the direction with a lower value and a smaller slope, or None at float64's precision."""
    steep, low, high, step = float(slope @ direction), 0.0, math.inf, 1.0
    best: tuple[Array, float, Array] | None = None
    for _ in range(TRIALS):
        new_point = point + step * direction
        new_value, new_slope = function(new_point)
        if not new_value <= value + DESCENT * step * steep:  # also where it is not a number
            high = step
        else:
            best = (new_point, new_value, new_slope) if new_value < value else best
            if new_slope @ direction >= CURVATURE * steep:
                break
            low = step
        step = 2.0 * step if math.isinf(high) else (low + high) / 2.0
    return best


def _updated(inverse: Array, move: Array, bend: Array, *, first: bool) -> Array:
    """Return the inverse Hessian after a step, by the formula of BFGS."""
    curved = float(move @ bend)
    if not curved > 0.0:
        return inverse
    if first:
        inverse = inverse * (curved / float(bend @ bend))
    seen = inverse @ bend
    cross = np.outer(seen, move)
    return inverse + ((1.0 + bend @ seen / curved) * np.outer(move, move) - cross - cross.T) / curved
