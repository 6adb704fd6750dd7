"""Small worlds in which every bounded quantity can be computed.

Logistic regression with two classes is ``nn.Linear(d, 2)`` with cross-entropy. Only the difference ``v = (a, c)`` of
its two rows matters: the loss is ``softplus(-sign (<a, x> + c))``, the smallest ``||theta||`` is ``||v|| / sqrt(2)``,
and a gradient step of eta in theta is a step of 2 eta in v. phi_gamma is a search along one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special

import wafl
from wafl.theory import Concentration, Constants

Array = NDArray[np.float64]
ROOT2 = math.sqrt(2.0)


@dataclass(frozen=True)
class Population:
    """Inputs ``x [N, d]``, ``sign [N]`` (+1 is class 1, -1 is class 0) and the mass of each."""

    x: Array
    sign: Array
    mass: Array

    def moved(self, x: Array) -> Population:
        return replace(self, x=x)

    @property
    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.x), torch.from_numpy((self.sign > 0).astype(np.int64))


def mix(populations: Sequence[Population], weights: Sequence[float]) -> Population:
    return Population(
        np.concatenate([p.x for p in populations]),
        np.concatenate([p.sign for p in populations]),
        np.concatenate([w * p.mass for p, w in zip(populations, weights, strict=True)]),
    )


@dataclass(frozen=True)
class Cluster:
    """A client: class 1 around ``center`` and class 0 around its negative, Gaussians truncated to the box [-1, 1]^d."""

    center: tuple[float, ...]
    spread: float = 0.5
    share: float = 0.5
    """The share of class 1."""

    def sample(self, count: int, rng: np.random.Generator) -> Population:
        sign = np.where(rng.random(count) < self.share, 1.0, -1.0)
        mean = sign[:, None] * np.array(self.center)
        low, high = special.ndtr((-1.0 - mean) / self.spread), special.ndtr((1.0 - mean) / self.spread)
        x = mean + self.spread * special.ndtri(low + (high - low) * rng.random(mean.shape))
        return Population(x.clip(-1.0, 1.0), sign, np.full(count, 1.0 / count))

    def nodes(self, order: int = 24) -> Population:
        """Return the distribution, as the nodes of a Gauss-Legendre rule in each dimension."""
        axis, weight = np.polynomial.legendre.leggauss(order)
        parts = []
        for sign in (1.0, -1.0):
            density = [weight * np.exp(-0.5 * ((axis - sign * c) / self.spread) ** 2) for c in self.center]
            grids = np.meshgrid(*[axis] * len(self.center), indexing="ij")
            masses = np.meshgrid(*[part / part.sum() for part in density], indexing="ij")
            x, mass = np.stack(grids, -1).reshape(-1, len(self.center)), np.prod(masses, axis=0).ravel()
            parts.append(Population(x, np.full(len(x), sign), mass))
        return mix(parts, [self.share, 1.0 - self.share])


def ascend(v: Array, x: Array, sign: Array, gamma: float | None) -> tuple[Array, Array, Array]:
    """``phi_gamma [..., N]`` (``gamma=None``: the loss), its slope in the margin, and the moved inputs.

    ``v [..., d+1]``, ``x [..., N, d]``. Moving x by t along ``-sign a / ||a||`` adds ``||a|| t`` to the margin m; the
    best t solves ``||a|| sigma(m + ||a|| t) = 2 gamma t``, which has one solution if ``2 gamma > ||a||^2 / 4``.
    """
    a, c = v[..., :-1], v[..., -1:]
    margin = -sign * ((x @ a[..., None])[..., 0] + c)
    if gamma is None:
        return np.logaddexp(0.0, margin), special.expit(margin), x
    steep = np.linalg.norm(a, axis=-1)[..., None]
    assert (2.0 * gamma > steep**2 / 4.0).all(), "the inner problem is not concave"
    t = np.zeros_like(margin)
    for _ in range(60):
        slope = special.expit(margin + steep * t)
        step = (steep * slope - 2.0 * gamma * t) / (2.0 * gamma - steep**2 * slope * (1.0 - slope))
        t = t + step
        if np.abs(step).max() < 1e-13 * (1.0 + np.abs(t).max()):
            break
    else:
        raise AssertionError("Newton's method did not converge")
    toward = a / np.where(steep > 0, steep, 1.0)
    moved = x - (sign * t)[..., None] * toward[..., None, :]
    return np.logaddexp(0.0, margin + steep * t) - gamma * t**2, special.expit(margin + steep * t), moved


def gradients(slope: Array, sign: Array, moved: Array) -> Array:
    """Return the gradient of each example's loss in v, ``[..., N, d+1]``, by the envelope theorem."""
    return (-sign * slope)[..., None] * np.concatenate([moved, np.ones((*moved.shape[:-1], 1))], axis=-1)


def risk(v: Array, population: Population, gamma: float | None = None) -> float:
    return float(population.mass @ ascend(v, population.x, population.sign, gamma)[0])


def risk_and_gradient(v: Array, population: Population, gamma: float | None) -> tuple[float, Array]:
    value, slope, moved = ascend(v, population.x, population.sign, gamma)
    pull = -population.sign * slope * population.mass
    return float(population.mass @ value), np.append(pull @ moved, pull.sum())


@dataclass(frozen=True)
class Least:
    """Minimize a convex risk over ``||v|| <= radius``; the true minimum is at least ``value - gap``."""

    v: Array
    value: float
    gap: float


def least(
    population: Population,
    radius: float,
    gamma: float | None = None,
    start: Array | None = None,
    weight_decay: float = 0.0,
) -> Least:
    """No point of the ball is better than ``value - gap``, where gap is how far the tangent plane falls within it.

    With ``weight_decay`` the risk has ``weight_decay / 2 ||theta||^2`` more, which is ``weight_decay / 4 ||v||^2``.
    """

    def goal(v: Array) -> tuple[float, Array]:
        value, gradient = risk_and_gradient(v, population, gamma)
        return value + weight_decay / 4.0 * float(v @ v), gradient + weight_decay / 2.0 * v

    result = optimize.minimize(
        goal,
        np.zeros(population.x.shape[1] + 1) if start is None else start,
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda v: radius**2 - v @ v, "jac": lambda v: -2.0 * v},
        options={"ftol": 1e-13, "maxiter": 200},
    )
    v = result.x * min(1.0, radius / max(float(np.linalg.norm(result.x)), 1e-300))
    value, gradient = goal(v)
    gap = float(gradient @ v) + radius * float(np.linalg.norm(gradient))
    assert gap < 1e-5, "not a minimum"
    return Least(v, value, max(gap, 0.0))


def model(v: Array) -> torch.nn.Linear:
    """Return the smallest ``nn.Linear(d, 2)`` with this v."""
    layer = torch.nn.Linear(len(v) - 1, 2).double()
    half = torch.from_numpy(v / 2.0)
    layer.weight.data = torch.stack([-half[:-1], half[:-1]])
    layer.bias.data = torch.stack([-half[-1], half[-1]])
    return layer


def constants_of(
    dimension: int, params_radius: float | None, gamma: float | None = None, *, label_cost: float = math.inf
) -> Constants:
    """Over the box [-1, 1]^d and what phi_gamma's objective can reach from it."""
    pair = Cluster((0.0,) * dimension).sample(8, np.random.default_rng(0)).pair
    reach = 0.0 if gamma is None or params_radius is None else ROOT2 * params_radius / (2.0 * gamma)
    return wafl.theory.constants(
        model(np.zeros(dimension + 1)),
        pair,
        data_bounds=(-1.0, 1.0),
        params_radius=params_radius,
        label_cost=label_cost,
        reach=reach,
    )


def box_concentration(width: float, dimension: int) -> Concentration:
    """Return proven c1 and c2 for every distribution on a box with sides ``width``, in fewer than 4 dimensions.

    Changing one of n examples changes ``T = W_2^2`` by at most ``B / n``, with B the squared diameter, so by McDiarmid
    ``P(T >= E T + s) <= exp(-2 n s^2 / B^2)``. If ``E T <= k / sqrt(n)``, take ``c2 = 1 / (2 B^2)`` and
    ``c1 = exp(4 k^2 c2)``: above ``x = 2 k / sqrt(n)``, s is at least ``x / 2``; below, ``c1 exp(-c2 n x^2) >= 1``.
    Beyond x = 1 the exponent stays 2, which means ``alpha = 4``.

    On a line ``T <= width W_1`` and ``E W_1 <= width / (2 sqrt(n))``. In two and three dimensions, use dyadic cells: a
    fraction ``sum_Q |P_n(Q) - P(Q)| <= sqrt(2^(d j) / n)`` (on average) of the mass leaves its cell at level j, and
    moves by at most a cell of level j - 1.
    """
    assert dimension < 4
    diameter2 = dimension * width**2
    ratio = 2.0 ** (dimension / 2 - 2)
    mean = 0.5 * width**2 if dimension == 1 else 4.0 * diameter2 * ratio / (1.0 - ratio)
    c2 = 1.0 / (2.0 * diameter2**2)
    return Concentration(c1=math.exp(4.0 * mean**2 * c2), c2=c2, alpha=4.0, dimension=dimension)


def labeled_line_concentration(width: float, label_cost: float) -> Concentration:
    """Return the same for a line with two labels, ``d^2 = |x - x'|^2 + kappa [y != y']``.

    ``T <= B |p_n - p| + sum_y p_n(y) W_2^2``, with the classes' own W_2 and ``B = width^2 + kappa``; on average this is
    at most ``(B / 2 + width^2 / sqrt(2)) / sqrt(n)``.
    """
    diameter2 = width**2 + label_cost
    mean, c2 = 0.5 * diameter2 + width**2 / ROOT2, 1.0 / (2.0 * diameter2**2)
    return Concentration(c1=math.exp(4.0 * mean**2 * c2), c2=c2, alpha=4.0, dimension=1)


def tail(concentration: Concentration, num_examples: int, x: float) -> float:
    """Return Fournier and Guillin's bound on ``P(W_2^2 >= x)`` (theorem 2 for W_2)."""
    d = concentration.dimension
    if x > 1.0:
        power = x ** (concentration.alpha / 2.0)
    elif d < 4:
        power = x * x
    elif d == 4:
        power = (x / math.log(2.0 + 1.0 / x)) ** 2
    else:
        power = x ** (d / 2.0)
    return concentration.c1 * math.exp(-concentration.c2 * num_examples * power)


@dataclass(frozen=True)
class Line:
    """A mixture of Gaussians on a line, each truncated to [-1, 1]."""

    centers: tuple[float, ...]
    weights: tuple[float, ...] = (1.0,)
    spread: float = 0.5

    def _sum(self, term: Callable[[float, float], Array]) -> Array:
        parts = []
        for center, weight in zip(self.centers, self.weights, strict=True):
            low = (-1.0 - center) / self.spread
            total = special.ndtr((1.0 - center) / self.spread) - special.ndtr(low)
            parts.append(weight / total * term(center, low))
        return np.sum(parts, axis=0)

    def cdf(self, x: Array) -> Array:
        return self._sum(lambda c, low: special.ndtr((x - c) / self.spread) - special.ndtr(low))

    def first(self, x: Array) -> Array:
        """Return the integral of t up to x, under the density."""
        s = self.spread
        return self._sum(
            lambda c, low: (
                c * (special.ndtr((x - c) / s) - special.ndtr(low)) - s * (_bell((x - c) / s) - _bell(np.array(low)))
            )
        )

    def second(self, x: Array) -> Array:
        """Return the integral of t^2 up to x, under the density."""
        s = self.spread
        return self._sum(
            lambda c, low: (
                (c * c + s * s) * (special.ndtr((x - c) / s) - special.ndtr(low))
                - s * ((x + c) * _bell((x - c) / s) - (c - 1.0) * _bell(np.array(low)))
            )
        )

    def quantile(self, u: Array) -> Array:
        low, high = np.full(u.shape, -1.0), np.full(u.shape, 1.0)
        for _ in range(52):
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < u
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)

    def sample(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return self.quantile(rng.random(shape))

    def squared_distance(self, points: Array, mass: Array | None = None) -> Array:
        """Return the exact ``W_2^2`` to points ``[..., n]``, by matching sorted points with quantiles."""
        order = np.argsort(points, axis=-1)
        x = np.take_along_axis(points, order, -1)
        share = np.full(x.shape[-1], 1.0 / x.shape[-1]) if mass is None else mass[order]
        edges = np.concatenate([np.zeros((*share.shape[:-1], 1)), np.cumsum(share, -1)], -1).clip(0.0, 1.0)
        edges[..., -1] = 1.0
        q = self.quantile(edges)
        q[..., 0], q[..., -1] = -1.0, 1.0
        first, second = np.diff(self.first(q), axis=-1), np.diff(self.second(q), axis=-1)
        return (x**2 * np.diff(edges, axis=-1) - 2.0 * x * first + second).sum(-1)

    def squared_distance_to(self, other: Line, cells: int = 20_000) -> float:
        u = (np.arange(cells) + 0.5) / cells
        return float(np.mean((self.quantile(u) - other.quantile(u)) ** 2))


def _bell(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


def squared_distance_on_line(x: Array, x_mass: Array, z: Array, z_mass: Array) -> float:
    """Return ``W_2^2`` between two weighted samples."""
    i, j = np.argsort(x), np.argsort(z)
    ends_x, ends_z = np.cumsum(x_mass[i]), np.cumsum(z_mass[j])
    ends = np.unique(np.concatenate([ends_x[:-1], ends_z[:-1], [1.0]]))
    middle = ends - 0.5 * np.diff(ends, prepend=0.0)
    at_x = x[i][np.searchsorted(ends_x, middle).clip(max=len(x) - 1)]
    at_z = z[j][np.searchsorted(ends_z, middle).clip(max=len(z) - 1)]
    return float(np.diff(ends, prepend=0.0) @ (at_x - at_z) ** 2)


@dataclass(frozen=True)
class Path:
    """``gaps [runs, T K + 1]``: F(mean of the clients' parameters) - F*, before and after each step.

    ``farthest`` is the largest ``||theta||`` of any client along the way; ``drift [T, K + 1, m]`` the mean squared
    distance of each client from the mean of all, before and after each step of a round; ``to_best [T + 1]`` the mean
    squared distance of the server to the minimizer.
    """

    gaps: Array
    farthest: float
    drift: Array
    to_best: Array


def algorithm_1(
    clients: Sequence[Population],
    weights: Sequence[float],
    best: Least,
    *,
    gamma: float,
    learning_rate: float,
    rounds: int,
    local_steps: int,
    batch_size: int | None,
    start: Array,
    runs: int,
    rng: np.random.Generator,
    weight_decay: float = 0.0,
) -> Path:
    """Train all clients in every round, with batches drawn with replacement; ``batch_size=None`` means full batches."""
    x, sign = np.stack([c.x for c in clients]), np.stack([c.sign for c in clients])
    lam, everyone = np.array(weights), mix(clients, weights)
    who = np.arange(len(clients))[:, None]
    server = np.tile(start, (runs, 1))

    def value(v: Array) -> Array:
        robust = ascend(v, everyone.x, everyone.sign, gamma)[0] @ everyone.mass
        return robust + weight_decay / 4.0 * (v**2).sum(-1)

    gaps, farthest, drift, to_best = [value(server)], 0.0, [], [((server - best.v) ** 2).sum(1).mean() / 2.0]
    for _ in range(rounds):
        local = np.repeat(server[:, None], len(clients), axis=1)
        apart = [np.zeros(len(clients))]
        for _ in range(local_steps):
            if batch_size is None:
                inputs, labels = x[None], sign[None]
            else:
                rows = rng.integers(x.shape[1], size=(runs, len(clients), batch_size))
                inputs, labels = x[who, rows], sign[who, rows]
            _, slope, moved = ascend(local, inputs, labels, gamma)
            local = local * (1.0 - learning_rate * weight_decay)
            local = local - 2.0 * learning_rate * gradients(slope, labels, moved).mean(-2)
            farthest = max(farthest, float(np.linalg.norm(local, axis=-1).max()) / ROOT2)
            mean = np.einsum("i,rij->rj", lam, local)
            apart.append(((local - mean[:, None]) ** 2).sum(-1).mean(0) / 2.0)
            gaps.append(value(mean))
        server = mean
        drift.append(np.stack(apart))
        to_best.append(((server - best.v) ** 2).sum(1).mean() / 2.0)
    return Path(np.stack(gaps, 1) - best.value, farthest, np.stack(drift), np.array(to_best))


def spreads(
    clients: Sequence[Population], weights: Sequence[float], gamma: float, radius: float, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the largest deviations of examples' and clients' gradients from the mean, at 300 points of the ball."""
    dimension = clients[0].x.shape[1] + 1
    v = rng.normal(size=(300, dimension))
    v *= (ROOT2 * radius * rng.random((300, 1)) ** (1.0 / dimension)) / np.linalg.norm(v, axis=1, keepdims=True)
    noise, means = 0.0, []
    for client in clients:
        _, slope, moved = ascend(v, client.x, client.sign, gamma)
        every = gradients(slope, client.sign, moved)
        means.append(every.mean(-2))
        noise = max(noise, float(((every - means[-1][:, None]) ** 2).sum(-1).mean(-1).max()))
    mean = np.tensordot(np.array(weights), np.stack(means), 1)
    apart = max(float(np.linalg.norm(part - mean, axis=-1).max()) for part in means)
    return ROOT2 * math.sqrt(noise), ROOT2 * apart
