"""Bound phi_gamma of a linear model with cross-entropy from above: branch and bound over the simplex.

With the notation of :mod:`wafl.theory.phi.incumbents` and H the entropy,

    phi_gamma = max over p on the simplex of  <p, A> + H(p) + size(p)^2 / (4 gamma).

The last term is convex in p. On a part of the simplex with vertices U it therefore lies below an interpolation at the
vertices: with ``p = U l``,

    size(p)^2 <= kept(p)^2 + <l, size(U)^2 - kept(U)^2>        l2, where size^2 - kept^2 is convex, too
    size(p)   <= <l, size(U)>, so size(p)^2 <= c <l, size(U)>^2 + (1 - c) <l, size(U)^2>     any norm, 0 <= c <= 1

``kept`` is as large as possible with the whole concave in p. The Hessian of H is ``-diag(1 / p)``, so
``H + <p, m>^2 / (4 gamma)`` is concave where the variance of m under p is at most ``2 gamma``. H plus the squared size
of an embedding is concave if this holds along every direction: if no two of its points are farther than
``sqrt(8 gamma)`` apart. A concave function lies below its tangents, so wherever an ascent in l ends, the maximum over
the part is at most ``f(l) + max_i g_i - <l, g>`` (the Frank-Wolfe gap). A part whose bound is still too high is cut in
two in the middle of its worst edge: long, and with weight at both ends.

**l_inf.** Along an edge, only inputs whose slope changes its sign make the interpolation of the size too high. Inputs
with a small slope in the middle of the simplex therefore count most in the length of an edge.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from wafl.theory.phi.incumbents import Ball, at_once, value_at

FIRST_STEPS, STEPS, LAST_STEPS = 60, 16, 12
"""Ascent steps on the whole simplex, on a part of it, and on a part that is not cut anymore."""
SURE_STEPS = 3
"""The minimum number of steps for a part that must be cut, because its weights determine the cut."""
MOST_PARTS = {2.0: 256, math.inf: 2304}
"""The maximum number of parts of the simplex of one example, by norm."""
EASY = 0.9
"""The share of the tolerance that an easy example, one of few parts, may use up."""
EASY_PARTS = {2.0: 32, math.inf: 768}
"""The number of parts of an easy example, by norm; an example with twice this number may use twice the work."""
MEMORY = 1 << 26
"""The maximum number of numbers in all parts together."""
CACHED = 1 << 19
"""The maximum number of numbers in the parts processed at a time, so that they stay in a processor's cache."""
SHRINK = 0.1
"""The maximum share by which a squared distance shrinks at a time."""
NARROW = 1e-3
"""The share of the largest squared distance below which no quadratic is kept."""
SPREAD = 0.03
"""The factor of an input's variance that is added to its squared slope."""


@dataclass(frozen=True)
class Kept:
    """The kept quadratic, ``(p - e_y)^T G (p - e_y) / (4 gamma)``, and the rest; both positive semidefinite."""

    quadratic: Tensor
    rest: Tensor

    @classmethod
    def of(cls, ball: Ball, gamma: float) -> Self:
        """Pull the two rows that are farthest apart a little closer, for l2, until none are farther than sqrt(8 gamma).

        All rows are pulled along the line through these two, so the kept quadratic is a smaller embedding of the same
        rows. Nothing is kept for other norms, or if the Gram matrix cannot tell some rows apart.
        """
        kept, limit = ball.gram, 8.0 * gamma
        if ball.norm != 2 or not ball.even or limit < NARROW * float(squared_distances(kept).max()):
            return cls(torch.zeros_like(kept), kept)
        while True:
            apart = squared_distances(kept)
            one, other = divmod(int(apart.argmax()), len(kept))
            widest = float(apart[one, other])
            if widest <= limit * (1.0 + 1e-12):
                return cls(kept, ball.gram - kept)
            axis = kept[:, one] - kept[:, other]
            kept = kept - min(1.0 - limit / widest, SHRINK) / widest * torch.outer(axis, axis)


def squared_distances(gram: Tensor) -> Tensor:
    """Return the squared distances between points with this Gram matrix."""
    squares = gram.diagonal(dim1=-2, dim2=-1)
    return squares[..., :, None] + squares[..., None, :] - 2.0 * gram


def edge_lengths(ball: Ball, kept: Kept) -> Tensor:
    """Return the squared lengths of the edges of the simplex, ``[C (y), C, C]``, by which parts are cut."""
    if ball.norm == 2:
        return squared_distances(kept.rest).expand(len(kept.rest), -1, -1)
    squares = ball.weight.square()  # in the middle of the simplex, a label's slopes: the mean of the rows is 0
    slopes = (squares + SPREAD * squares.mean(0)).sqrt().clamp_min(torch.finfo(squares.dtype).tiny)
    return squared_distances(torch.stack([(ball.weight / slope) @ ball.weight.T for slope in slopes]))


@dataclass(frozen=True)
class Parts:
    """Parts of the simplex: their examples, their vertices ``[n, C (class), C (vertex)]``, and their bounds.

    ``apart`` is the squared length of each edge; ``level`` is interpolated at the vertices, ``ray`` is the root of
    the kept rank-one term, and ``weights`` is the maximizer of the bound.
    """

    example: Tensor
    vertices: Tensor
    apart: Tensor
    sizes: Tensor
    level: Tensor
    ray: Tensor
    weights: Tensor
    bound: Tensor

    def __len__(self) -> int:
        return len(self.example)

    def take(self, chosen: Tensor) -> Self:
        """Return the parts with these indices."""
        return type(self)(*(getattr(self, name).index_select(0, chosen) for name in self.__dataclass_fields__))

    def where(self, chosen: Tensor) -> Self:
        """Return the parts that a mask selects."""
        return self.take(chosen.nonzero()[:, 0])


class Search:
    """A search that cuts the simplex of each example: ``a [n, C]`` are its A_j, ``y [n]`` its label."""

    def __init__(self, ball: Ball, kept: Kept, a: Tensor, y: Tensor, gamma: float) -> None:
        self.ball, self.a, self.y, self.gamma = ball, a, y, gamma
        self._lengths = edge_lengths(ball, kept)
        self.quadratic = kept.quadratic / (4.0 * gamma)
        # (p - e_y)^T G (p - e_y) = p^T G p - 2 <p, G_y> + G_yy
        self.linear = a - 2.0 * self.quadratic[y]
        self.constant = self.quadratic.diagonal()[y]

    def whole(self, enough: Tensor) -> Parts:
        """Return the whole simplex, one part per example; ``enough`` is the desired bound of each example."""
        count, classes = self.a.shape
        corners = torch.eye(classes, dtype=self.a.dtype, device=self.a.device).expand(count, -1, -1)
        example = torch.arange(count, device=self.a.device)
        sizes = self.ball.distances[self.y]
        squares = sizes.square() / (4.0 * self.gamma)
        kept = squared_distances(self.quadratic)[self.y]
        apart = self._lengths[self.y]
        parts = self._made(example, corners, apart, sizes, squares - kept, (self.a + squares).softmax(-1))
        return self.bounded(parts, enough, FIRST_STEPS)

    def cut(self, parts: Parts, enough: Tensor) -> Parts:
        """Return both halves of each part; cuts at the maximum itself would make slender parts, and many more."""
        weights, classes = parts.weights, self.a.shape[1]
        long = parts.apart * parts.apart.clamp_min(0.0).sqrt()
        edge = (weights[:, :, None] * weights[:, None, :] * long).flatten(1).argmax(-1)
        one, other = edge // classes, edge % classes
        rows = torch.arange(len(parts), device=edge.device)
        middle = (parts.vertices[rows, :, one] + parts.vertices[rows, :, other]) / 2.0
        # Stewart's theorem: the distance of a point between two others from a third.
        near, far = parts.apart[rows, one], parts.apart[rows, other]
        away = (near + far) / 2.0 - near.gather(-1, other[:, None]) / 4.0
        labels = self.y[parts.example]
        size = self.ball.size(labels, middle)
        lean = self.ball.lean(labels, middle)
        level = size.square() / (4.0 * self.gamma) - ((lean @ self.quadratic) * lean).sum(-1)
        vertices, apart = parts.vertices.repeat(2, 1, 1), parts.apart.repeat(2, 1, 1)
        sizes, levels = parts.sizes.repeat(2, 1), parts.level.repeat(2, 1)
        replaced, twice = torch.cat([other, one]), torch.arange(2 * len(parts), device=edge.device)
        vertices[twice, :, replaced] = middle.repeat(2, 1)
        apart[twice, :, replaced] = apart[twice, replaced] = away.repeat(2, 1)
        apart[twice, replaced, replaced] = 0.0
        sizes[twice, replaced], levels[twice, replaced] = size.repeat(2), level.repeat(2)
        start = weights + 1e-3
        start = (start / start.sum(-1, keepdim=True)).repeat(2, 1)
        halves = self._made(parts.example.repeat(2), vertices, apart, sizes, levels, start)
        return self.bounded(replace(halves, bound=parts.bound.repeat(2)), enough, STEPS)

    def _made(
        self, example: Tensor, vertices: Tensor, apart: Tensor, sizes: Tensor, level: Tensor, weights: Tensor
    ) -> Parts:
        """Return parts; the interpolated ``level`` depends on the part for norms other than l2."""
        ray = torch.zeros_like(sizes)
        if self.ball.norm != 2:
            share = _concave_share(vertices, sizes, weights, self.gamma)[:, None]
            level = (1.0 - share) * sizes.square() / (4.0 * self.gamma)
            ray = (share / (4.0 * self.gamma)).sqrt() * sizes
        return Parts(example, vertices, apart, sizes, level, ray, weights, torch.full_like(sizes[:, 0], torch.inf))

    def bounded(self, parts: Parts, enough: Tensor, steps: int) -> Parts:
        """Lower the parts' bounds by an ascent, each until it is ``enough`` for its example, or never will be."""
        size = max(1, at_once(CACHED, self.a.device) // self.a.shape[1] ** 2)
        every = torch.arange(len(parts), device=self.a.device)
        pieces = [self._ascended(parts, rows, enough, steps) for rows in every.split(size)]
        weights, bound = map(torch.cat, zip(*pieces, strict=True))
        return replace(parts, weights=weights, bound=bound)

    def _ascended(self, parts: Parts, rows: Tensor, enough: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Return the weights and the bounds of these parts after an ascent."""
        here = _Bound.on(self, parts, rows)
        weights, logits = parts.weights[rows], parts.weights[rows].clamp_min(1e-300).log()
        value, slope = here.at(weights)
        bound = torch.minimum(parts.bound[rows], _by_tangent(value, slope, weights))
        best, wanted = weights.clone(), enough[parts.example[rows]]
        active, pace = torch.arange(len(rows), device=rows.device), torch.ones_like(slope[:, :1])
        for step in range(steps):
            # The maximum of the bound is at least its value anywhere.
            hopeful = (value <= wanted) | (step < SURE_STEPS) | wanted.isinf()
            going = ((bound[active] > wanted) & hopeful).nonzero()[:, 0]
            if not len(going):
                break
            if len(going) < len(active):
                here, active, wanted = here.take(going), active[going], wanted[going]
                logits, value, slope, pace = (each.index_select(0, going) for each in (logits, value, slope, pace))
            tried = logits + pace * slope
            new_weights = tried.softmax(-1)
            new, new_slope = here.at(new_weights)
            bound[active] = torch.minimum(bound[active], _by_tangent(new, new_slope, new_weights))
            better = (new >= value)[:, None]
            best[active] = torch.where(better, new_weights, best[active])
            logits, slope = torch.where(better, tried, logits), torch.where(better, new_slope, slope)
            value, pace = torch.where(better[:, 0], new, value), torch.where(better, 2.0 * pace, 0.25 * pace)
        return best, bound


@dataclass(frozen=True)
class _Bound:
    """The concave function that bounds the objective on each of some parts."""

    quadratic: Tensor
    linear: Tensor
    vertices: Tensor
    level: Tensor
    ray: Tensor | None

    @classmethod
    def on(cls, search: Search, parts: Parts, rows: Tensor) -> Self:
        example = parts.example[rows]
        level = parts.level[rows] + search.constant[example][:, None]
        ray = None if search.ball.norm == 2 else parts.ray[rows]
        linear, vertices = search.linear.index_select(0, example), parts.vertices.index_select(0, rows)
        return cls(search.quadratic, linear, vertices, level, ray)

    def take(self, rows: Tensor) -> Self:
        linear, vertices, level = (each.index_select(0, rows) for each in (self.linear, self.vertices, self.level))
        return type(self)(self.quadratic, linear, vertices, level, None if self.ray is None else self.ray[rows])

    def at(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return its value, and its slope in the weights of the vertices."""
        p = torch.bmm(self.vertices, weights[..., None])[..., 0].clamp_min(1e-300)
        slope = self.linear - p.log()
        if self.ray is None:
            pulled = p @ self.quadratic
            value = (p * (slope + pulled)).sum(-1) + (self.level * weights).sum(-1)
            slope = slope + 2.0 * pulled
            return value, torch.bmm(self.vertices.mT, slope[..., None])[..., 0] + self.level
        ray = (self.ray * weights).sum(-1, keepdim=True)
        value = (p * slope).sum(-1) + (self.level * weights).sum(-1) + ray[:, 0].square()
        inside = torch.bmm(self.vertices.mT, slope[..., None])[..., 0]
        return value, inside + self.level + 2.0 * ray * self.ray


def _by_tangent(value: Tensor, slope: Tensor, weights: Tensor) -> Tensor:
    """Return the largest value of the tangent over the part."""
    return value + (slope.amax(-1) - (weights * slope).sum(-1)).clamp_min(0.0)


def _concave_share(vertices: Tensor, sizes: Tensor, weights: Tensor, gamma: float) -> Tensor:
    """Return the largest c for which ``H(p) + c <p, m>^2 / (4 gamma)`` is surely concave on a part, m the linear size.

    For any center, the variance of m under p is at most the mean of ``(m - center)^2``, which is linear in p: it is
    largest at a vertex.
    """
    linear = torch.linalg.solve(vertices.mT, sizes)
    center = (torch.bmm(vertices, weights[..., None])[..., 0] * linear).sum(-1, keepdim=True)
    most = torch.full_like(sizes[:, 0], torch.inf)
    for _ in range(3):
        spread = torch.bmm(vertices.mT, (linear - center).square()[..., None])[..., 0]
        worst, index = spread.max(-1)
        most = torch.minimum(most, worst)
        center = (center + sizes.gather(-1, index[:, None])) / 2.0  # <vertex, m> is the size there
    return (2.0 * gamma / most.clamp_min(1e-300)).clamp_max(1.0)


def branch(
    ball: Ball, a: Tensor, y: Tensor, gamma: float, lower: Tensor, upper: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Close the gap between ``lower`` and ``upper`` to about ``tolerance`` in the mean; a long search may leave more.

    Returns the two sides, and the cost of the best move found; NaN where that was no better.
    """
    size = max(1, at_once(MEMORY, a.device) // (MOST_PARTS[ball.norm] * a.shape[1] ** 2))
    kept = Kept.of(ball, gamma)
    pieces = [
        _branch(Search(ball, kept, a[rows], y[rows], gamma), lower[rows], upper[rows], tolerance[rows])
        for rows in torch.arange(len(a), device=a.device).split(size)
    ]
    low, high, cost = map(torch.cat, zip(*pieces, strict=True))
    return low, high, cost


def _branch(search: Search, lower: Tensor, upper: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cost = torch.full_like(lower, torch.nan)
    count = torch.ones_like(lower)
    nothing = settled = torch.full_like(lower, -torch.inf)
    parts = search.whole(lower + _allowed(search.ball.norm, tolerance, count))
    parts = replace(parts, bound=torch.minimum(parts.bound, upper))
    while True:
        p = torch.bmm(parts.vertices, parts.weights[..., None])[..., 0]
        value, spent = value_at(search.ball, search.a[parts.example], search.y[parts.example], p, search.gamma)
        lower, cost = _best(lower, cost, parts.example, value, spent)
        enough = lower + _allowed(search.ball.norm, tolerance, count)
        wide = parts.bound > enough[parts.example]
        cut = wide & (count[parts.example] < MOST_PARTS[search.ball.norm])
        left = (wide & ~cut).nonzero()[:, 0]
        if len(left):
            bound = parts.bound.scatter(0, left, search.bounded(parts.take(left), nothing, LAST_STEPS).bound)
            parts = replace(parts, bound=bound)
        settled = settled.scatter_reduce(0, parts.example[~cut], parts.bound[~cut], "amax")
        if not cut.any():
            return lower, torch.maximum(settled, lower), cost
        parts = search.cut(parts.where(cut), enough)
        count = count.scatter_add(0, parts.example, torch.full_like(parts.bound, 0.5))


def _allowed(norm: float, tolerance: Tensor, count: Tensor) -> Tensor:
    """Return the allowed gap of an example after this many parts: a few slow ones use up what the others save."""
    return EASY * (count / EASY_PARTS[norm]).clamp_min(1.0) * tolerance


def _best(lower: Tensor, cost: Tensor, example: Tensor, value: Tensor, spent: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest value of each example so far, and its cost."""
    best = lower.scatter_reduce(0, example, value, "amax")
    winner = (value >= best[example]) & (value > lower[example])
    return best, cost.scatter(0, example[winner], spent[winner])
