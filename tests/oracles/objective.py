"""Expected values, straight from the equations, in plain Python, numpy and scipy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from hypothesis import settings
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor, nn

Array = NDArray[np.float64]

torch.set_num_threads(1)  # the problems are tiny: threads cost more than they gain
quick = settings(deadline=None, derandomize=True, max_examples=30)


def linear_model(weight: Array, bias: Array | float = 0.0) -> nn.Linear:
    """``W x + b`` in float64."""
    outputs, features = weight.shape
    layer = nn.Linear(features, outputs).double()
    layer.weight.data = torch.from_numpy(np.array(weight, dtype=float))
    layer.bias.data = torch.from_numpy(np.broadcast_to(np.asarray(bias, dtype=float), outputs).copy())
    return layer


class Hidden(nn.Module):
    """A module that computes the inner model's function, and hides its structure."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def cross_entropy(weight: Array, bias: Array | float, x: Array, y: int) -> Array:
    """``log sum_j exp(<w_j - w_y, x> + b_j - b_y)`` for each row of x."""
    logits = x @ weight.T + bias
    gaps = logits - logits[..., y : y + 1]
    top = gaps.max(-1, keepdims=True)
    return np.log(np.exp(gaps - top).sum(-1)) + top[..., 0]


def input_gradient(weight: Array, bias: Array, x: Array, y: NDArray[np.generic], loss: str) -> Array:
    """The gradient in x of the cross-entropy or squared error of ``W x + b``, for each row of x."""
    outputs = x @ weight.T + bias
    if loss == "squared_error":
        return 2.0 * (outputs - y) @ weight
    p = np.exp(outputs - outputs.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True) - np.eye(len(weight))[y]) @ weight


def dual_order(norm: float) -> float:
    return {1: math.inf, 2: 2, math.inf: 1}[norm]


def steepest(weight: Array, y: int, norm: float) -> float:
    """The largest slope of the cross-entropy along a unit vector: ``max_j ||w_j - w_y||_*``."""
    return max(float(np.linalg.norm(row - weight[y], ord=dual_order(norm))) for row in weight)


def phi_on_rays(
    loss: Callable[[Array], Array], directions: Array, gamma: float, longest: float, cells: int = 200, zooms: int = 5
) -> float:
    """``max over t >= 0 and directions v of loss(t v) - gamma t^2``, on a grid that zooms in on every ray."""
    low = np.zeros(len(directions))
    width = np.full(len(directions), longest)
    best = -math.inf
    for zoom in range(zooms):
        t = low[:, None] + width[:, None] * np.linspace(0.0, 1.0, cells + 1 if zoom == 0 else 21)
        values = loss(t[..., None] * directions[:, None]) - gamma * t**2
        best = max(best, float(values.max()))
        peak = np.take_along_axis(t, values.argmax(1)[:, None], 1)[:, 0]
        step = width / (t.shape[1] - 1)
        low, width = np.maximum(peak - step, 0.0), 2.0 * step
    return best


def corners(norm: float, dimension: int) -> Array:
    """The extreme points of a norm's unit ball: a convex loss attains its maximum over the ball at one of them."""
    if norm == math.inf:
        return np.array(list(itertools.product((-1.0, 1.0), repeat=dimension)))
    return np.concatenate([np.eye(dimension), -np.eye(dimension)])


def cross_entropy_phi(weight: Array, bias: Array, x: Array, y: int, gamma: float, norm: float) -> float:
    """phi_gamma of a linear model under the squared l1 or l_inf cost, by enumeration."""
    longest = steepest(weight, y, norm) / (2.0 * gamma)
    return phi_on_rays(
        lambda delta: cross_entropy(weight, bias, x + delta, y), corners(norm, len(x)), gamma, 1.01 * longest
    )


def best_linear_gain(gradient: Array, gamma: float, norm: float, power: int, low: Array, high: Array) -> float:
    """``max <g, d> - gamma ||d||^power`` over ``low <= d <= high``, with the norm in smooth variables.

    l1 splits d into its positive and negative parts; l_inf bounds every coordinate by one level.
    """
    n = len(gradient)
    if norm == 1:

        def gain(v: Array) -> float:
            return float(gradient @ (v[:n] - v[n:]) - gamma * v.sum() ** power)

        box, limits = [*((0.0, up) for up in high), *((0.0, -down) for down in low)], []
    elif norm == math.inf:

        def gain(v: Array) -> float:
            return float(gradient @ v[:n] - gamma * v[n] ** power)

        box = [*zip(low, high, strict=True), (0.0, None)]
        limits = [optimize.LinearConstraint(np.c_[sign * np.eye(n), np.ones(n)], lb=0.0) for sign in (1, -1)]
    else:

        def gain(v: Array) -> float:
            return float(gradient @ v - gamma * np.linalg.norm(v) ** power)

        box, limits = list(zip(low, high, strict=True)), []
    best = 0.0
    for length in (0.1, 1.0):  # the l2 norm has a kink at 0: start next to it
        d = np.clip(length * np.sign(gradient), low, high)
        start = {1: np.r_[d.clip(0), (-d).clip(0)], 2: d, math.inf: np.r_[d, np.abs(d).max()]}[norm]
        result = optimize.minimize(
            lambda v: -gain(v),
            start,
            method="SLSQP",
            bounds=box,
            constraints=limits,
            options={"ftol": 1e-13, "maxiter": 300},
        )
        best = max(best, -float(result.fun)) if np.isfinite(result.fun) else best
    return best


def sorted_linear_maximizer(gradient: Array, gamma: float, norm: float, power: int, down: Array, up: Array) -> Array:
    """``argmax <g, d> - gamma ||d||^power`` over ``-down <= d <= up`` for l1 and l_inf, coordinate after coordinate.

    l_inf raises all coordinates together, passing one bound after another; l1 fills the steepest coordinate first.
    """
    size, space = np.abs(gradient), np.where(gradient >= 0, up, down)
    delta = np.zeros_like(space)
    if norm == math.inf:
        level = 0.0
        for stop in np.sort(space):
            gain = size[space > level].sum()
            best = gain / (2.0 * gamma) if power == 2 else (math.inf if gain > gamma else 0.0)
            if best <= level:
                break
            level = min(best, stop)
        delta = np.minimum(level, space)
    else:
        total = 0.0
        for index in np.argsort(-size, kind="stable"):
            best = size[index] / (2.0 * gamma) if power == 2 else (math.inf if size[index] > gamma else 0.0)
            delta[index] = min(max(best - total, 0.0), space[index])
            total += delta[index]
    return np.sign(gradient) * delta


def concave_maximum(objective: Callable[[Array], float], start: Array) -> tuple[Array, float]:
    """The maximizer and the maximum of a smooth concave function."""
    result = optimize.minimize(lambda v: -objective(v), start, method="BFGS", options={"gtol": 1e-10})
    return result.x, -float(result.fun)


def concave_box_maximum(
    objective: Callable[[Array], tuple[float, Array]], start: Array, low: float, high: float
) -> tuple[Array, float]:
    """The maximizer and the maximum of a smooth concave function, given with its gradient, over a box (L-BFGS-B)."""

    def descent(v: Array) -> tuple[float, Array]:
        value, gradient = objective(v)
        return -value, -gradient

    box, options = [(low, high)] * len(start), {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 2000}
    result = optimize.minimize(descent, start, jac=True, method="L-BFGS-B", bounds=box, options=options)
    return result.x, -float(result.fun)


def box_maximum(objective: Callable[[Array], Array], low: float, high: float, cells: int = 120) -> float:
    """The maximum of a function over a square, on a dense grid that zooms in on its 20 best points."""
    axis = np.linspace(low, high, cells + 1)
    points = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    values = objective(points)
    half = (high - low) / cells
    centers = points[np.argsort(values)[-20:]]
    for _ in range(9):
        offsets = np.stack(np.meshgrid(*2 * (np.linspace(-half, half, 11),)), -1).reshape(-1, 2)
        points = np.clip(centers[:, None] + offsets, low, high)
        values = objective(points)
        centers = np.take_along_axis(points, values.argmax(1)[:, None, None], 1)[:, 0]
        half /= 5.0
    return float(values.max())


def squared_error_worst_case(residuals: Array, weight: Array, share: Array, radius: float) -> float:
    """``inf over gamma of gamma rho^2 + E phi_gamma`` for ``||W x + b - y||^2`` and the squared l2 cost.

    In the eigenbasis of ``W W^T``, phi is ``sum_k gamma / (gamma - e_k) r_k^2`` for gamma above the largest e_k.
    """
    values, basis = np.linalg.eigh(weight @ weight.T)
    squares = share @ (residuals @ basis) ** 2

    def dual(log_excess: float) -> float:
        gamma = values[-1] + math.exp(log_excess)
        return float(gamma * radius**2 + squares @ (gamma / (gamma - values)))

    return float(optimize.minimize_scalar(dual, bounds=(-20, 20), method="bounded", options={"xatol": 1e-10}).fun)


def cross_entropy_worst_case(
    weight: Array, bias: Array, x: Array, y: NDArray[np.int64], share: Array, radius: float, lowest: float
) -> tuple[float, float]:
    """The minimum of ``gamma rho^2 + E phi_gamma`` over ``gamma >= lowest``, where phi is concave, and its gamma."""

    def dual(log_gamma: float) -> float:
        gamma, moved = math.exp(log_gamma), x
        for _ in range(400):
            moved = x + input_gradient(weight, bias, moved, y, "cross_entropy") / (2.0 * gamma)
        losses = [float(cross_entropy(weight, bias, z, label)) for z, label in zip(moved, y, strict=True)]
        return gamma * radius**2 + float(share @ (np.array(losses) - gamma * ((moved - x) ** 2).sum(1)))

    result = optimize.minimize_scalar(
        dual, bounds=(math.log(lowest), math.log(lowest) + 8.0), method="bounded", options={"xatol": 1e-5}
    )
    return float(result.fun), math.exp(result.x)


def sure_worst_case(slope: float, position: float, radius: float) -> float:
    """The dual for ``log(1 + exp(-slope x))`` with all mass at one position of the line."""
    delta = np.linspace(0.0, 10.0 * (position + radius), 8001)
    losses = np.logaddexp(0.0, -slope * (position - delta))

    def dual(log_gamma: float) -> float:
        gamma = math.exp(log_gamma)
        return float(gamma * radius**2 + (losses - gamma * delta**2).max())

    return float(optimize.minimize_scalar(dual, bounds=(-8, 5), method="bounded", options={"xatol": 1e-8}).fun)
