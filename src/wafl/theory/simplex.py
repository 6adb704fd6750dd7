"""phi_gamma of a linear model with cross-entropy from above: branch and bound over the simplex.

With the notation of :mod:`wafl.theory.ball` and H the entropy,

    phi_gamma = max over p on the simplex of  <p, A> + H(p) + size(p)^2 / (4 gamma).

The last term is convex in p. On a part of the simplex with vertices U it therefore lies below an interpolation at the
vertices: with ``p = U l``,

    size(p)^2 <= kept(p)^2 + <l, size(U)^2 - kept(U)^2>        l2, where size^2 - kept^2 is convex, too
    size(p)   <= <l, size(U)>, so size(p)^2 <= c <l, size(U)>^2 + (1 - c) <l, size(U)^2>     any norm, 0 <= c <= 1

What is kept is as much as leaves the whole concave in p. The Hessian of H is ``-diag(1 / p)``, so
``H + <p, m>^2 / (4 gamma)`` is concave where the variance of m under p is at most ``2 gamma``. H plus the squared size
of an embedding is concave if this holds along every direction: if no two of its points are farther than
``sqrt(8 gamma)`` apart. A concave function lies below its tangents, so wherever an ascent in l ends, the maximum over
the part is at most ``f(l) + max_i g_i - <l, g>`` (the Frank-Wolfe gap). A part whose bound is still too high is cut in
two across its worst edge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wafl.theory.ball import Ball
from wafl.theory.incumbents import value_at

FIRST_STEPS, STEPS = 60, 12
"""Ascent steps on the whole simplex, and on a part of it."""
MOST_PARTS = 256
"""Into how many parts the simplex of one example is cut at most."""
MEMORY = 1 << 25
"""How many numbers all parts together may have."""


@dataclass(frozen=True)
class Kept:
    """The quadratic that is kept on the whole simplex: ``(p - e_y)^T G (p - e_y) / (4 gamma)``, and what is left."""

    quadratic: Tensor
    rest: Tensor

    @classmethod
    def of(cls, ball: Ball, gamma: float) -> Kept:
        """For l2: shrink the longest principal directions of the rows until no two are farther than sqrt(8 gamma)."""
        if ball.norm != 2:
            return cls(torch.zeros_like(ball.gram), torch.zeros_like(ball.gram))
        squares, axes = torch.linalg.eigh(ball.gram)
        squares = squares.clamp_min(0.0)

        def shrunk(cap: Tensor) -> Tensor:
            return (axes * squares.clamp_max(cap)) @ axes.T

        low, high = torch.zeros_like(squares[-1]), squares[-1]
        if _widest(shrunk(high)) > 8.0 * gamma:
            for _ in range(60):
                middle = (low + high) / 2.0
                low, high = (middle, high) if _widest(shrunk(middle)) <= 8.0 * gamma else (low, middle)
            high = low
        kept = shrunk(high)
        return cls(kept, ball.gram - kept)


def _widest(gram: Tensor) -> float:
    """The largest squared distance between two points with this Gram matrix."""
    own = gram.diagonal()
    return float((own[:, None] + own[None, :] - 2.0 * gram).max())


@dataclass(frozen=True)
class Parts:
    """Parts of the simplex: of which example, their vertices ``[n, C (class), C (vertex)]``, and what is known there.

    ``level`` is what is interpolated at the vertices, ``ray`` the root of the rank-one term that is kept, ``weights``
    where the bound has its maximum.
    """

    example: Tensor
    vertices: Tensor
    sizes: Tensor
    level: Tensor
    ray: Tensor
    weights: Tensor
    bound: Tensor

    def __len__(self) -> int:
        return len(self.example)

    def take(self, chosen: Tensor) -> Parts:
        return Parts(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @property
    def p(self) -> Tensor:
        return torch.bmm(self.vertices, self.weights[..., None])[..., 0]


@dataclass(frozen=True)
class Search:
    """Cuts the simplex of each example: ``a [n, C]`` are its A_j, ``y [n]`` its label."""

    ball: Ball
    kept: Kept
    a: Tensor
    y: Tensor
    gamma: float

    def whole(self) -> Parts:
        """The whole simplex, one part per example."""
        count, classes = self.a.shape
        corners = torch.eye(classes, dtype=self.a.dtype, device=self.a.device).expand(count, -1, -1)
        example = torch.arange(count, device=self.a.device)
        sizes = self.ball.distances[self.y]
        start = (self.a + sizes.square() / (4.0 * self.gamma)).softmax(-1)
        kept = self._kept(self.y.repeat_interleave(classes), corners.reshape(-1, classes)).view(count, classes)
        return self._bounded(example, corners, sizes, sizes.square() / (4.0 * self.gamma) - kept, start, FIRST_STEPS)

    def cut(self, parts: Parts) -> Parts:
        """Both halves of each part, across the edge that the interpolation misses most."""
        weights, classes = parts.weights, self.a.shape[1]
        gram = self.kept.rest if self.ball.norm == 2 else self.ball.gram
        seen = (parts.vertices.mT.reshape(-1, classes) @ gram).view_as(parts.vertices)
        inner = torch.bmm(seen, parts.vertices)
        own = inner.diagonal(dim1=1, dim2=2)
        apart = own[:, :, None] + own[:, None, :] - 2.0 * inner
        edge = (weights[:, :, None] * weights[:, None, :] * apart).flatten(1).argmax(-1)
        one, other = edge // classes, edge % classes
        rows = torch.arange(len(parts), device=edge.device)
        first, second = weights[rows, one], weights[rows, other]
        share = (first / (first + second)).clamp(0.2, 0.8)[:, None]
        middle = share * parts.vertices[rows, :, one] + (1.0 - share) * parts.vertices[rows, :, other]
        labels = self.y[parts.example]
        size = self.ball.size(labels, middle)
        level = size.square() / (4.0 * self.gamma) - self._kept(labels, middle)
        vertices, sizes, levels = parts.vertices.repeat(2, 1, 1), parts.sizes.repeat(2, 1), parts.level.repeat(2, 1)
        replaced, twice = torch.cat([other, one]), torch.arange(2 * len(parts), device=edge.device)
        vertices[twice, :, replaced] = middle.repeat(2, 1)
        sizes[twice, replaced], levels[twice, replaced] = size.repeat(2), level.repeat(2)
        start = weights + 1e-3
        start = (start / start.sum(-1, keepdim=True)).repeat(2, 1)
        halves = self._bounded(parts.example.repeat(2), vertices, sizes, levels, start, STEPS)
        return replace(halves, bound=torch.minimum(halves.bound, parts.bound.repeat(2)))

    def _bounded(
        self, example: Tensor, vertices: Tensor, sizes: Tensor, level: Tensor, weights: Tensor, steps: int
    ) -> Parts:
        """For l2, ``level`` is what is interpolated; for other norms it depends on the part, and is found here."""
        squares = sizes.square() / (4.0 * self.gamma)
        if self.ball.norm == 2:
            ray = torch.zeros_like(sizes)
        else:
            share = _concave_share(vertices, sizes, weights, self.gamma)[:, None]
            level, ray = (1.0 - share) * squares, (share / (4.0 * self.gamma)).sqrt() * sizes
        parts = Parts(example, vertices, sizes, level, ray, weights, squares[:, 0])
        value, slope = self._value(parts)
        bound = _by_tangent(value, slope, weights)
        pace = torch.ones_like(value)[:, None]
        for _ in range(steps):
            tried = replace(parts, weights=(parts.weights.clamp_min(1e-300).log() + pace * slope).softmax(-1))
            new, new_slope = self._value(tried)
            bound = torch.minimum(bound, _by_tangent(new, new_slope, tried.weights))
            better = (new >= value)[:, None]
            parts = replace(parts, weights=torch.where(better, tried.weights, parts.weights))
            value, slope = torch.where(better[:, 0], new, value), torch.where(better, new_slope, slope)
            pace = torch.where(better, 2.0 * pace, 0.25 * pace)
        return replace(parts, bound=bound)

    def _value(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """The concave function that bounds the objective on each part, and its slope in the weights."""
        p, a, y = parts.p.clamp_min(1e-300), self.a[parts.example], self.y[parts.example]
        logs, ray = p.log(), (parts.ray * parts.weights).sum(-1, keepdim=True)
        slope = a - logs
        value = (p * slope).sum(-1) + (parts.level * parts.weights).sum(-1) + ray[:, 0].square()
        if self.ball.norm == 2:
            pulled = p @ self.kept.quadratic - self.kept.quadratic[y]
            lean = p.scatter_add(-1, y[:, None], -torch.ones_like(p[:, :1]))
            value = value + (pulled * lean).sum(-1) / (4.0 * self.gamma)
            slope = slope + pulled / (2.0 * self.gamma)
        inside = torch.bmm(parts.vertices.mT, slope[..., None])[..., 0]
        return value, inside + parts.level + 2.0 * ray * parts.ray

    def _kept(self, labels: Tensor, points: Tensor) -> Tensor:
        """The quadratic that is kept, at one point for each label."""
        lean = points.scatter_add(-1, labels[:, None], -torch.ones_like(points[:, :1]))
        return ((lean @ self.kept.quadratic) * lean).sum(-1) / (4.0 * self.gamma)


def _by_tangent(value: Tensor, slope: Tensor, weights: Tensor) -> Tensor:
    """The largest value of the tangent over the part."""
    return value + (slope.amax(-1) - (weights * slope).sum(-1)).clamp_min(0.0)


def _concave_share(vertices: Tensor, sizes: Tensor, weights: Tensor, gamma: float) -> Tensor:
    """The largest c for which ``H(p) + c <p, m>^2 / (4 gamma)`` is surely concave on a part, m the linear size.

    For any center, the variance of m under p is at most the mean of ``(m - center)^2``, which is linear in p: it is
    largest at a vertex.
    """
    linear = torch.linalg.solve(vertices.mT, sizes)
    center = (torch.bmm(vertices, weights[..., None])[..., 0] * linear).sum(-1, keepdim=True)
    most = torch.full_like(sizes[:, 0], torch.inf)
    for _ in range(3):
        spread = torch.bmm(vertices.mT, (linear - center).square()[..., None])[..., 0]
        worst, place = spread.max(-1)
        most = torch.minimum(most, worst)
        center = (center + sizes.gather(-1, place[:, None])) / 2.0  # <vertex, m> is the size there
    return (2.0 * gamma / most.clamp_min(1e-300)).clamp_max(1.0)


def branch(
    ball: Ball, a: Tensor, y: Tensor, gamma: float, lower: Tensor, upper: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Close the gap between ``lower`` and ``upper`` down to ``tolerance``, as far as :data:`MOST_PARTS` allows.

    Returns the two sides, and the cost of the best move that was met on the way; NaN where that was no better.
    """
    size = max(1, MEMORY // (MOST_PARTS * a.shape[1] ** 2))
    kept = Kept.of(ball, gamma)
    found = [
        _branch(Search(ball, kept, a[rows], y[rows], gamma), lower[rows], upper[rows], tolerance[rows])
        for rows in torch.arange(len(a), device=a.device).split(size)
    ]
    low, high, cost = (torch.cat([each[place] for each in found]) for place in range(3))
    return low, high, cost


def _branch(search: Search, lower: Tensor, upper: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cost = torch.full_like(lower, torch.nan)
    settled = torch.full_like(lower, -torch.inf)
    count = torch.ones_like(lower)
    parts = search.whole()
    parts = replace(parts, bound=torch.minimum(parts.bound, upper))
    while True:
        value, spent = value_at(search.ball, search.a[parts.example], search.y[parts.example], parts.p, search.gamma)
        lower, cost = _best(lower, cost, parts.example, value, spent)
        alive = (parts.bound > (lower + tolerance)[parts.example]) & (count[parts.example] < MOST_PARTS)
        done = parts.take(~alive)
        settled = settled.scatter_reduce(0, done.example, done.bound, "amax")
        if not alive.any():
            return lower, torch.maximum(settled, lower), cost
        parts = search.cut(parts.take(alive))
        count = count.scatter_add(0, parts.example, torch.full_like(parts.bound, 0.5))


def _best(lower: Tensor, cost: Tensor, example: Tensor, value: Tensor, spent: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of each example so far, and the cost that comes with it."""
    best = lower.scatter_reduce(0, example, value, "amax")
    winner = (value >= best[example]) & (value > lower[example])
    return best, cost.scatter(0, example[winner], spent[winner])
