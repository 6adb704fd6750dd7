"""Solve a linear model to its optimum: L-BFGS in double precision, in coordinates where the loss is nearly round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from research.clients_ball.objectives import Array, Examples, Objective, log_softmax

PRECISION = 1e-6
"""The largest entry of the gradient, as a share of the largest at weights of 0, where training stops."""
STEPS = 500


@dataclass(frozen=True)
class Solution:
    """The weights, and the largest entry of their gradient over that at weights of 0."""

    weights: Array
    precision: float


def solve(
    objective: Objective,
    examples: Examples,
    metric: Array | None = None,
    start: Array | None = None,
    precision: float = PRECISION,
) -> Solution:
    """Minimize an objective; ``metric [D, D]`` is roughly the curvature of its penalty, for faster convergence."""
    shape = (examples.classes, examples.x.shape[1] + 1)
    curvature = examples.inputs.T @ examples.inputs / len(examples.y) / examples.classes
    if metric is not None:
        curvature[:-1, :-1] += metric
    values, vectors = np.linalg.eigh(curvature)
    rounder = vectors / np.sqrt(np.maximum(values, 1e-8 * values[-1])) @ vectors.T
    back = np.linalg.inv(rounder)
    largest = float(np.abs(objective(np.zeros(shape))[1]).max())

    def rounded(flat: Array) -> tuple[float, Array]:
        value, gradient = objective(flat.reshape(shape) @ rounder)
        return value, (gradient @ rounder).ravel()

    weights = np.zeros(shape) if start is None else start
    reached = float(np.abs(objective(weights)[1]).max()) / largest
    goal = precision * largest / float(np.abs(back).sum(1).max())  # enough for the precision in the true coordinates
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS, "gtol": goal, "ftol": 0.0, "maxcor": 20}
    for _ in range(2):  # a second time with a new memory, if the line search failed
        if reached <= precision:
            break
        found = cast(Any, minimize)(rounded, (weights @ back).ravel(), jac=True, method="L-BFGS-B", options=options)
        weights = found.x.reshape(shape) @ rounder
        reached = float(np.abs(objective(weights)[1]).max()) / largest
    return Solution(weights, reached)


def temperature(logits: Array, labels: Array) -> float:
    """Return the number that logits are divided by for the smallest log-loss, from 1/30 to 30."""
    rows = np.arange(len(labels))

    def loss(log: float) -> float:
        return -float(log_softmax(logits / np.exp(log))[rows, labels].mean())

    bound = float(np.log(30.0))
    return float(np.exp(cast(Any, minimize_scalar)(loss, bounds=(-bound, bound), method="bounded").x))
