"""The theory's quantities straight from their definitions: dense search, plain loops, numpy and torch.autograd."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad, jacrev, vmap

from tests.oracles.objective import Array, dual_order, steepest

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of ``theta``, ``x`` and ``y`` (a class as a one-hot vector, or a target) of one example."""


def linear_loss(loss: str, outputs: int, has_bias: bool) -> Loss:
    """Cross-entropy or squared error of ``W x + b``, where ``theta`` is W row by row and then b."""

    def at(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        split = outputs * len(x)
        s = theta[:split].view(outputs, len(x)) @ x
        s = s + theta[split:] if has_bias else s
        return s.logsumexp(0) - s @ y if loss == "cross_entropy" else (s - y).square().sum()

    return at


def network_loss(model: nn.Module) -> Loss:
    """Cross-entropy of a network, where ``theta`` is its parameters one after another."""
    shapes = {name: value.shape for name, value in model.named_parameters()}

    def at(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = theta.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        s = torch.func.functional_call(model, named, (x[None],))[0]
        return s.logsumexp(0) - s @ y

    return at


def plain_outputs(model: nn.Module, x: Array) -> Array:
    with torch.no_grad():
        return model(torch.from_numpy(x)).numpy()


def plain_losses(model: nn.Module, x: Array, y: NDArray[np.int64]) -> Array:
    """The cross-entropy of each example."""
    s = plain_outputs(model, x)
    top = s.max(1)
    return np.log(np.exp(s - top[:, None]).sum(1)) + top - s[np.arange(len(y)), y]


def slopes_on_a_line(function: Callable[[Array], Array], x: Array, step: float = 1e-5) -> Array:
    return (function(x + step) - function(x - step)) / (2.0 * step)


def flat_parameters(model: nn.Module) -> Array:
    return torch.cat([value.detach().double().flatten() for value in model.parameters()]).numpy()


def operator_norm(matrix: Tensor, norm: float) -> Tensor:
    """The largest ``||H v||_*`` over ``||v|| <= 1``, for each of ``matrix [N, d, d]``."""
    if norm == 2:
        return torch.linalg.matrix_norm(matrix, ord=2)
    if norm == 1:
        return matrix.abs().amax((-2, -1))
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=matrix.shape[-1])), dtype=matrix.dtype)
    return (matrix @ signs.T).abs().sum(-2).amax(-1)


def size_of(name: str, loss: Loss, norm: float = 2) -> Callable[[Points], Array]:
    """The slope or curvature that the constant called ``name`` bounds, at each of many points."""

    def length(gradient: Tensor) -> Tensor:
        return torch.linalg.vector_norm(gradient.flatten(1), ord=dual_order(norm), dim=1)

    def square(tensor: Tensor, rows: int) -> Tensor:
        return tensor.reshape(len(tensor), rows, -1)

    sizes: dict[str, Callable[..., Tensor]] = {
        "max_loss": lambda t, x, y: vmap(loss)(t, x, y),
        "L_z": lambda t, x, y: length(vmap(grad(loss, 1))(t, x, y)),
        "L_zz": lambda t, x, y: operator_norm(square(vmap(jacrev(grad(loss, 1), 1))(t, x, y), x[0].numel()), norm),
        "L_theta": lambda t, x, y: vmap(grad(loss, 0))(t, x, y).norm(dim=1),
        "L_theta_theta": lambda t, x, y: operator_norm(vmap(jacrev(grad(loss, 0), 0))(t, x, y), 2),
        "L_theta_z": lambda t, x, y: torch.linalg.matrix_norm(
            square(vmap(jacrev(grad(loss, 0), 1))(t, x, y), t.shape[1]), ord=2
        ),
    }
    return lambda points: sizes[name](*(torch.from_numpy(part) for part in points.parts())).numpy()


@dataclass
class Points:
    theta: Array
    x: Array
    y: Array

    def parts(self) -> tuple[Array, Array, Array]:
        return self.theta, self.x, self.y

    def take(self, rows: NDArray[np.int64]) -> Points:
        return Points(*(part[rows] for part in self.parts()))

    def joined(self, other: Points) -> Points:
        return Points(*(np.concatenate(pair) for pair in zip(self.parts(), other.parts(), strict=True)))


@dataclass(frozen=True)
class Domain:
    """Parameters in a ball (or fixed), inputs in a box that is widened by ``reach`` in l2 (or anywhere), labels."""

    shape: tuple[int, ...]
    outputs: int
    low: float
    high: float
    reach: float = 0.0
    theta: Array | None = None
    params_radius: float = 0.0
    num_params: int = 0
    targets: tuple[Array, Array] | None = None
    anywhere: bool = False

    def draw(self, count: int, rng: np.random.Generator) -> Points:
        if self.theta is None:
            theta = rng.normal(size=(count, self.num_params))
            theta *= (self.params_radius * rng.uniform(size=count) ** 0.2 / np.linalg.norm(theta, axis=1))[:, None]
        else:
            theta = np.repeat(self.theta[None], count, 0)
        x = rng.uniform(self.low, self.high, size=(count, *self.shape))
        corners = rng.uniform(size=(count, *(1,) * len(self.shape))) < 0.5
        x = np.where(corners, np.where(x < (self.low + self.high) / 2, self.low, self.high), x)
        x = x + self.reach * rng.normal(size=x.shape)
        if self.anywhere:
            x = x * 10.0 ** rng.uniform(-1, 2, size=corners.shape)
        return self.project(Points(theta, x, self.labels(count, rng)))

    def labels(self, count: int, rng: np.random.Generator) -> Array:
        if self.targets is None:
            return np.eye(self.outputs)[rng.integers(self.outputs, size=count)]
        low, high = self.targets
        return np.where(rng.uniform(size=(count, self.outputs)) < 0.5, low, high)

    def nudge(self, points: Points, step: float, rng: np.random.Generator) -> Points:
        """Move each point a little, sometimes in only one of its parts."""
        theta, x, y = points.parts()
        count = len(x)
        lead = (count, *(1,) * len(self.shape))
        which = rng.integers(3, size=count)
        if self.theta is None:
            move = rng.normal(size=theta.shape) * self.params_radius * step
            theta = theta + np.where(which[:, None] == 0, 0.0, move)
        width = np.linalg.norm(x.reshape(count, -1), axis=1).reshape(lead) if self.anywhere else self.high - self.low
        x = x + np.where(which.reshape(lead) == 1, 0.0, rng.normal(size=x.shape) * step * width)
        fresh = rng.uniform(size=(count, 1)) < 0.1
        return self.project(Points(theta, x, np.where(fresh, self.labels(count, rng), y)))

    def project(self, points: Points) -> Points:
        theta, x, y = points.parts()
        if self.theta is None:
            length = np.linalg.norm(theta, axis=1, keepdims=True)
            theta = theta * np.minimum(1.0, self.params_radius / np.maximum(length, 1e-300))
        if not self.anywhere:
            inside = x.clip(self.low, self.high)
            out = (x - inside).reshape(len(x), -1)
            length = np.linalg.norm(out, axis=1, keepdims=True)
            out = out * np.minimum(1.0, self.reach / np.maximum(length, 1e-300))
            x = inside + out.reshape(x.shape)
        return Points(theta, x, y)

    def over_all_inputs(self) -> Domain:
        return replace(self, anywhere=True)


def largest_found(
    size: Callable[[Points], Array],
    domain: Domain,
    *,
    seed: int = 0,
    starts: Points | None = None,
    draws: int = 1000,
    rounds: int = 40,
    kept: int = 10,
    children: int = 15,
) -> float:
    """The largest size found: random points first, then ever smaller random steps from the best of them."""
    rng = np.random.default_rng(seed)
    points = domain.draw(draws, rng)
    if starts is not None:
        points = points.joined(domain.project(starts))
    values = size(points)
    for turn in range(rounds):
        best = np.argsort(values)[-kept:]
        points, values = points.take(best), values[best]
        tried = domain.nudge(points.take(np.repeat(np.arange(len(best)), children)), 0.5 * 0.85**turn, rng)
        points, values = points.joined(tried), np.concatenate([values, size(tried)])
    return float(values.max())


Labels = NDArray[np.generic]


@dataclass(frozen=True)
class Case:
    """A model in float64 and the examples of several clients, one after another; ``share`` sums to 1."""

    model: nn.Module
    loss: str
    x: Array
    y: Labels
    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def share(self) -> Array:
        """Each example's share of the mixture."""
        weights = np.array(self.weights) / sum(self.weights)
        return np.repeat(weights / np.array(self.sizes), self.sizes)

    def pairs(self) -> list[tuple[Array, Labels]]:
        ends = np.cumsum(self.sizes)[:-1]
        return list(zip(np.split(self.x, ends), np.split(self.y, ends), strict=True))

    def losses(self, x: Array, y: Labels) -> Array:
        if self.loss == "squared_error":
            return ((plain_outputs(self.model, x) - np.reshape(y, (len(y), -1))) ** 2).sum(1)
        return plain_losses(self.model, x, y)

    def gradients(self, x: Array, y: Labels) -> Array:
        z = torch.from_numpy(x).requires_grad_()
        outputs = self.model(z)
        if self.loss == "squared_error":
            total = (outputs - torch.from_numpy(np.reshape(y, (len(y), -1)))).square().sum()
        else:
            total = nn.functional.cross_entropy(outputs, torch.from_numpy(y), reduction="sum")
        return torch.autograd.grad(total, z)[0].numpy()

    def slopes(self, norm: float) -> Array:
        """``||dloss/dx||_*`` of each example."""
        return np.linalg.norm(self.gradients(self.x, self.y), ord=dual_order(norm), axis=1)

    def mean(self) -> float:
        return float(self.share @ self.losses(self.x, self.y))


def toward(gradient: Array, norm: float) -> Array:
    """For each row, the unit vector of the norm that maximizes ``<g, v>``."""
    if norm == 2:
        return gradient / np.maximum(np.linalg.norm(gradient, axis=1, keepdims=True), 1e-300)
    if norm == 1:
        index = np.abs(gradient).argmax(1)
        return np.eye(gradient.shape[1])[index] * np.sign(gradient[np.arange(len(gradient)), index])[:, None]
    return np.sign(gradient)


def cost(delta: Array, norm: float) -> Array:
    return np.linalg.norm(delta, ord=norm, axis=1) ** 2


def climbed_shift(case: Case, radius: float, norm: float, turns: int = 300) -> float:
    """The best expected loss along a fixed-point iteration: moves in the steepest direction, as long as the slope.

    That is where the dual's maximizers lie, with the price of transport at which the moves spend the budget.
    """
    delta, best = np.zeros_like(case.x), case.mean()
    for _ in range(turns):
        gradient = case.gradients(case.x + delta, case.y)
        aim = toward(gradient, norm) * np.linalg.norm(gradient, ord=dual_order(norm), axis=1, keepdims=True)
        paid = float(case.share @ cost(aim, norm))
        delta = delta + 0.5 * (aim * radius / math.sqrt(max(paid, 1e-300)) - delta)
        delta *= min(1.0, radius / math.sqrt(max(float(case.share @ cost(delta, norm)), 1e-300)))
        best = max(best, float(case.share @ case.losses(case.x + delta, case.y)))
    return best


def squared_error_phi(weight: Array, residual: Array, gamma: float, norm: float) -> Array:
    """``max (r + <w, d>)^2 - gamma ||d||^2 = gamma r^2 / (gamma - ||w||_*^2)`` for one output."""
    steep = float(np.linalg.norm(weight, ord=dual_order(norm))) ** 2
    return gamma / (gamma - steep) * residual**2


def searched_phi(case: Case, row: int, gamma: float, norm: float, longest: float, cells: int = 60) -> float:
    """``max loss(x + d) - gamma ||d||^2`` over ``||d||_inf <= longest``, by a grid that zooms in on its best points."""
    dimension = case.x.shape[1]
    cells = {1: 2000, 2: cells, 3: 24}[dimension]

    def values(delta: Array) -> Array:
        flat = delta.reshape(-1, dimension)
        label = np.repeat(case.y[row : row + 1], len(flat), 0)
        return (case.losses(case.x[row] + flat, label) - gamma * cost(flat, norm)).reshape(delta.shape[:-1])

    def grid(half: float, points: int) -> Array:
        axis = np.linspace(-half, half, points)
        return np.stack(np.meshgrid(*dimension * (axis,)), -1).reshape(-1, dimension)

    result = grid(longest, cells + 1)
    best = result[np.argsort(values(result))[-8:]]
    half = 2.0 * longest / cells
    for _ in range(10):
        tried = best[:, None] + grid(half, 9)
        best = np.take_along_axis(tried, values(tried).argmax(1)[:, None, None], 1)[:, 0]
        half /= 3.0
    return float(max(values(best).max(), case.losses(case.x[row : row + 1], case.y[row : row + 1])[0]))


def farthest_rows(weight: Array, norm: float) -> float:
    return max(steepest(weight, label, norm) for label in range(len(weight)))


def dual_on_a_grid(case: Case, weight: Array, radius: float, limit: float, turns: int = 3000) -> float:
    """The minimum of ``gamma rho^2 + E phi_gamma`` over ``gamma > limit`` for a linear model, cross-entropy and l2.

    phi comes from the fixed point ``x' = x + grad loss(x') / 2 gamma``, a contraction above the limit, and gammas from
    a grid that zooms in.
    """
    x, y, share = case.x, case.y, case.share
    bias = plain_outputs(case.model, np.zeros((1, x.shape[1])))[0]

    def dual(gammas: Array) -> Array:
        moved = np.repeat(x[None], len(gammas), 0)
        for _ in range(turns):
            s = moved @ weight.T + bias
            p = np.exp(s - s.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            after = x + (p - np.eye(len(weight))[y]) @ weight / (2.0 * gammas[:, None, None])
            if np.abs(after - moved).max() < 1e-13:
                break
            moved = after
        s = moved @ weight.T + bias
        top = s.max(-1)
        losses = np.log(np.exp(s - top[..., None]).sum(-1)) + top - s[:, np.arange(len(y)), y]
        return gammas * radius**2 + (losses - gammas[:, None] * ((moved - x) ** 2).sum(-1)) @ share

    low, high = math.log(1e-2), math.log(1e4)
    best = math.inf
    for _ in range(5):
        logs = np.linspace(low, high, 41)
        values = dual(limit * (1.0 + np.exp(logs)))
        best = min(best, float(values.min()))
        step, peak = logs[1] - logs[0], logs[values.argmin()]
        low, high = peak - step, peak + step
    return best
