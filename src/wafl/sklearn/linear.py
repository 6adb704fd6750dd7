"""Solve linear models to their optimum in a ball, in float64 and without random draws."""

import math
from dataclasses import dataclass

import numpy as np

from wafl.sklearn.descent import Array, Function, minimize
from wafl.sklearn.worst_case import Ball, Classification, Regression


@dataclass(frozen=True)
class Solution:
    """The model's ``weight [K, D]`` and ``bias [K]``, its worst expected loss in the ball, and the search's outcome."""

    weight: Array
    bias: Array
    worst_loss: float
    steps: int
    converged: bool


def solve(
    x: Array, y: Array, classes: int | None, ball: Ball, tol: float, max_iter: int, *, restarts: bool = True
) -> Solution:
    """Return the linear model with the smallest worst loss in a ball: a classifier, or without classes a regression.

    Without `restarts`, an example's worst move may be a local maximum, and a classifier takes a third of the time.
    """
    if classes is None:
        return solve_regression(x, y, ball, tol, max_iter)
    return solve_classification(x, y, classes, ball, tol, max_iter, restarts=restarts)


def solve_classification(
    x: Array, y: Array, classes: int, ball: Ball, tol: float, max_iter: int, *, restarts: bool = True
) -> Solution:
    """Return the linear classifier with the smallest worst cross-entropy; its rows sum to 0."""
    center, spread = _units(x)
    worst = Classification(x - center, y, classes, ball, restarts)
    size = classes * x.shape[1]
    scale = np.concatenate([np.tile(1.0 / spread, classes), np.ones(classes + worst.priced)])
    shares = np.eye(classes)[y]
    first = 0.1 * (shares - shares.mean(0)).T @ ((x - center) / spread) / len(x)
    price = [math.log(0.25 / ball.radius)] if worst.priced else []
    start = np.concatenate([first.ravel(), np.log(shares.mean(0)), price])
    minimum = minimize(_scaled(worst, scale), start, tol, max_iter)
    weight = (minimum.point * scale)[:size].reshape(classes, -1)
    weight -= weight.mean(0)
    bias = minimum.point[size : size + classes] - weight @ center
    return Solution(weight, bias - bias.mean(), minimum.value, minimum.steps, minimum.converged)


def solve_regression(x: Array, y: Array, ball: Ball, tol: float, max_iter: int) -> Solution:
    """Return the linear regression with the smallest worst squared error."""
    center, spread = _units(x)
    middle, unit = float(y.mean()), float(y.std()) or 1.0
    worst = Regression(x - center, (y - middle) / unit, Ball(ball.radius, ball.norm, 2, ball.label_cost * unit**2))
    scale = np.append(1.0 / spread, 1.0)
    # From half of ordinary least squares: at 0 and where it fits exactly there may be a kink.
    start = np.append(0.5 * np.linalg.lstsq((x - center) / spread, (y - middle) / unit, rcond=None)[0], 0.0)
    minimum = minimize(_scaled(worst, scale), start, tol, max_iter)
    weight = unit * (minimum.point * scale)[:-1]
    bias = np.array([middle + unit * minimum.point[-1] - weight @ center])
    return Solution(weight[None], bias, (unit * minimum.value) ** 2, minimum.steps, minimum.converged)


def _scaled(worst: Function, scale: Array) -> Function:
    """Return the function of parameters in units in which inputs have standard deviation 1."""

    def function(params: Array) -> tuple[float, Array]:
        value, slope = worst(params * scale)
        return value, slope * scale

    return function


def _units(x: Array) -> tuple[Array, Array]:
    """Return the mean and the standard deviation of each column, 1 for a constant column."""
    spread = x.std(0)
    return x.mean(0), np.where(spread > 1e-12 * np.abs(x).max(0, initial=1.0), spread, 1.0)
