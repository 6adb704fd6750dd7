"""The weights of a cohort from its losses, straight from their definitions, by general solvers or plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, linprog, minimize

Weigh = Callable[[list[float], list[float]], list[float]]
"""From the weights of the center and the losses to the weights."""


def superquantile(alpha: float) -> Weigh:
    """``max <lambda, loss>`` over ``0 <= lambda_i <= center_i / (1 - alpha)``: a linear program."""

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        bounds = [(0.0, weight / (1.0 - alpha)) for weight in center]
        result = linprog([-loss for loss in losses], A_eq=[[1.0] * len(losses)], b_eq=[1.0], bounds=bounds)
        assert result.success
        return result.x.tolist()

    return weigh


def tilted(t: float) -> Weigh:
    """``center_i exp(t loss_i)``, scaled."""

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        largest = max(t * loss for loss in losses)
        raw = [weight * math.exp(t * loss - largest) for weight, loss in zip(center, losses, strict=True)]
        return [value / sum(raw) for value in raw]

    return weigh


def kl_divergence(weights: list[float], center: list[float]) -> float:
    return sum(w * math.log(w / c) for w, c in zip(weights, center, strict=True) if w > 0)


def kl_ball(radius: float) -> Weigh:
    """The tilt at which the divergence is the radius, by a root finder."""

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        def excess(t: float) -> float:
            return kl_divergence(tilted(t)(center, losses), center) - radius

        return tilted(brentq(excess, 0.0, 1e4, xtol=1e-14))(center, losses)  # pyright: ignore[reportArgumentType]

    return weigh


def solved(divergence: Callable[[np.ndarray, np.ndarray], float], radius: float) -> Weigh:
    """``max <lambda, loss>`` over the ball of any divergence from the center, by a general solver."""

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        middle, slopes = np.array(center), np.array(losses)
        inside = {"type": "ineq", "fun": lambda weights: radius - divergence(weights, middle)}
        whole = {"type": "eq", "fun": lambda weights: weights.sum() - 1.0}
        result = minimize(
            lambda weights: -weights @ slopes,
            middle,
            jac=lambda weights: -slopes,
            bounds=[(1e-12, 1.0)] * len(middle),
            constraints=[inside, whole],
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 500},
        )
        return result.x.tolist()

    return weigh


def chi2_divergence(weights: np.ndarray, center: np.ndarray) -> float:
    return float(0.5 * ((weights - center) ** 2 / center).sum())


def kl_of_arrays(weights: np.ndarray, center: np.ndarray) -> float:
    return float((weights * np.log(weights / center)).sum())


def powers(q: float) -> Weigh:
    """``center_i loss_i^q``, scaled."""

    def weigh(center: list[float], losses: list[float]) -> list[float]:
        raw = [weight * loss**q for weight, loss in zip(center, losses, strict=True)]
        return [value / sum(raw) for value in raw]

    return weigh
