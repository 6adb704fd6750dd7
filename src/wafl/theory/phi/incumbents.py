"""Bound phi_gamma of a linear model with cross-entropy from below: good moves by ascent over mixes of classes.

An example with label y and outputs ``s = W x + b`` has ``loss = logsumexp_j(A_j)`` with ``A_j = s_j - s_y``, and a move
``delta`` adds ``<w_j - w_y, delta>`` to each ``A_j``. For p on the simplex ``size`` is ``||sum_j p_j (w_j - w_y)||_*``.

For every p on the simplex ``<p, A> + H(p) + size(p)^2 / (4 gamma)`` is at most phi_gamma, and its largest value is
phi_gamma: the move of length ``size(p) / (2 gamma)`` along the pull of p attains at least that. The step
``p <- softmax(A + the effect of this move)`` never descends.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wafl.base.norms import dual, power_norm, steepest
from wafl.train.lanes.lanes import free_bytes

CHUNK = 1 << 22
"""How many numbers a CPU processes at a time."""
SLOPES = 1 << 17
"""How many slopes a CPU sums at a time, so that they stay in its cache."""
COPIES = 16
"""The memory that a search needs, in copies of its input."""
CLOSE = 1e-9
"""The share of the largest product of rows below which a squared distance of two loses digits in their Gram matrix."""


def at_once(numbers: int, device: torch.device) -> int:
    """Return how many numbers to search together: this many on a CPU, and all that fit in memory on a GPU.

    On a GPU, a search for few numbers takes the same time.
    """
    return numbers if device.type == "cpu" else free_bytes(device) // (8 * COPIES)


class Ball:
    """The moves of one ground norm, and their effect on the outputs of ``W [C, D]``."""

    def __init__(self, weight: Tensor, norm: float) -> None:
        self.weight = weight - weight.mean(0)  # changes no difference of rows, and keeps digits
        self.norm = norm

    @cached_property
    def gram(self) -> Tensor:
        """The Gram matrix of the centered rows of W."""
        return self.weight @ self.weight.T

    @cached_property
    def even(self) -> bool:
        """Whether the Gram matrix tells all rows apart: False if some are far closer to each other than to the rest."""
        squares = torch.stack([(self.weight - row).square().sum(-1) for row in self.weight])
        return bool((squares[squares > 0] > CLOSE * self.gram.abs().max()).all())

    @cached_property
    def distances(self) -> Tensor:
        """The distances ``||w_j - w_y||_*``, ``[C (y), C (j)]``."""
        return torch.stack([power_norm(self.weight - row, dual(self.norm), 1) for row in self.weight])

    @cached_property
    def pulls(self) -> Tensor:
        """The effect of a move of length 1 toward class j on each A_k: ``[C (y), C (j), C (k)]``."""
        return torch.stack([steepest(self.weight - row, self.norm) @ (self.weight - row).T for row in self.weight])

    def size(self, y: Tensor, p: Tensor) -> Tensor:
        """Return ``||sum_j p_j (w_j - w_y)||_*`` for labels ``[n]`` and ``p [n, C]``."""
        lean = self.lean(y, p)
        if self.norm == 2 and self.even:
            return ((lean @ self.gram) * lean).sum(-1).clamp_min(0.0).sqrt()
        return torch.cat([power_norm(part @ self.weight, dual(self.norm), 1) for part in self._pieces(lean)])

    def pull(self, y: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return the size, and the effect of the move of length 1 that attains it on each A_k, ``[n, C]``."""
        lean = self.lean(y, p)
        if self.norm == 2 and self.even:
            seen = lean @ self.gram
            size = (seen * lean).sum(-1).clamp_min(0.0).sqrt()
            added = seen / size.clamp_min(torch.finfo(size.dtype).tiny)[:, None]
        else:
            pulls: list[tuple[Tensor, Tensor]] = []
            for piece in self._pieces(lean):
                slope = piece @ self.weight
                pulls.append((power_norm(slope, dual(self.norm), 1), steepest(slope, self.norm) @ self.weight.T))
            size, added = map(torch.cat, zip(*pulls, strict=True))
        return size, added - added.gather(-1, y[:, None])

    def lean(self, y: Tensor, p: Tensor) -> Tensor:
        """Return ``p - e_y``: the coefficient of each row of W in ``sum_j p_j (w_j - w_y)``."""
        return p.scatter_add(-1, y[:, None], -torch.ones_like(p[:, :1]))

    def _pieces(self, lean: Tensor) -> tuple[Tensor, ...]:
        return lean.split(max(1, at_once(SLOPES, lean.device) // self.weight.shape[1]))


RIVALS = 3
"""The number of classes that the ascent tries as directions before it starts."""
SHARES = (0.5, 1.0)
"""How far to go toward each of them, as a share of the best distance."""
STEPS, FEW_STEPS = 200, 6
"""Ascent steps for l2, and for l_inf, where each step reads every input."""
SUMMIT_STEPS = 1000
SETTLED = 0.02
"""The share of the tolerance by which the tangent may rise at the end of an ascent."""


@dataclass(frozen=True)
class Incumbent:
    """The best p found for each example, its value, and the squared length of its move."""

    p: Tensor
    value: Tensor
    cost: Tensor


@dataclass(frozen=True)
class Summit(Incumbent):
    """An incumbent with ``missed``: how much higher the maximum may be."""

    missed: Tensor


def value_at(ball: Ball, a: Tensor, y: Tensor, p: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Return the value of p and the squared length of its move."""
    square = ball.size(y, p).square()
    return value_of(a, p, square, gamma), square / (4.0 * gamma * gamma)


def value_of(a: Tensor, p: Tensor, square: Tensor, gamma: float) -> Tensor:
    """Return ``<p, A> + H(p) + size(p)^2 / (4 gamma)``."""
    return (p * a).sum(-1) - torch.xlogy(p, p).sum(-1) + square / (4.0 * gamma)


def tangent_rise(logs: Tensor, p: Tensor) -> Tensor:
    """Return the maximum rise of the tangent at p: ``max_j r_j - <p, r>``, r from log p to the next step's ``logs``."""
    rise = logs - p.clamp_min(torch.finfo(p.dtype).tiny).log()
    return (rise.amax(-1) - (p * rise).sum(-1)).clamp_min(0.0)


def climb(ball: Ball, a: Tensor, y: Tensor, gamma: float, tolerance: Tensor, concave: bool = False) -> Incumbent:
    """Climb from the example itself and, unless the whole is ``concave``, from the best move toward a single class."""
    best = _ascend(ball, a, y, a.softmax(-1), gamma, tolerance)
    if concave:
        return best
    other = _ascend(ball, a, y, _toward_a_class(ball, a, y, gamma), gamma, tolerance)
    better = other.value > best.value
    return Incumbent(
        torch.where(better[:, None], other.p, best.p),
        torch.where(better, other.value, best.value),
        torch.where(better, other.cost, best.cost),
    )


def summit(ball: Ball, a: Tensor, y: Tensor, gamma: float, tolerance: Tensor) -> Summit:
    """Return the maximum if the function is concave in p (l2 and ``2 gamma >= L_zz``): it lies below its tangents."""
    return _until_settled(ball, a, y, a.softmax(-1), gamma, 1e-4 * tolerance, share=1e-4)


def settle(ball: Ball, a: Tensor, y: Tensor, p: Tensor, gamma: float, tolerance: Tensor) -> Summit:
    """Climb on from p until the tangent there rises by next to nothing; ``missed`` is its rise."""
    return _until_settled(ball, a, y, p.clone(), gamma, SETTLED * tolerance)


def _until_settled(
    ball: Ball, a: Tensor, y: Tensor, p: Tensor, gamma: float, enough: Tensor, share: float | None = None
) -> Summit:
    """Climb until the tangent rises by no more than ``enough``, nor than a ``share`` of the gain of the move."""
    rows = torch.arange(len(a), device=a.device)
    missed = torch.full_like(a[:, 0], torch.inf)
    for _ in range(SUMMIT_STEPS):
        here = p[rows]
        size, added = ball.pull(y[rows], here)
        logs = (a[rows] + (size / (2.0 * gamma))[:, None] * added).log_softmax(-1)
        missed[rows] = tangent_rise(logs, here)
        limit = enough[rows]
        if share is not None:
            limit = torch.minimum(limit, share * (size.square() / (4.0 * gamma)))
        far = missed[rows] > limit
        rows = rows[far]
        if not len(rows):
            break
        p[rows] = logs[far].exp()
        missed[rows] = torch.inf
    return Summit(p, *value_at(ball, a, y, p, gamma), missed)


def _toward_a_class(ball: Ball, a: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Return the softmax at the end of the best of a few moves, toward the classes that gain most alone."""
    best, p = torch.full_like(a[:, 0], -torch.inf), a.softmax(-1)
    gains = a + ball.distances[y].square() / (4.0 * gamma)
    for rival in gains.topk(min(RIVALS, a.shape[1]), -1).indices.T:
        far, pulls = ball.distances[y, rival] / (2.0 * gamma), ball.pulls[y, rival]
        for share in SHARES:
            moved = a + (share * far)[:, None] * pulls
            value = moved.logsumexp(-1) - gamma * (share * far).square()
            better = value > best
            best = torch.where(better, value, best)
            p = torch.where(better[:, None], moved.softmax(-1), p)
    return p


def _ascend(ball: Ball, a: Tensor, y: Tensor, p: Tensor, gamma: float, tolerance: Tensor) -> Incumbent:
    p = p.clone()
    rows = torch.arange(len(p), device=p.device)
    for _ in range(STEPS if ball.norm == 2 else FEW_STEPS):
        size, added = ball.pull(y[rows], p[rows])
        new = (a[rows] + (size / (2.0 * gamma))[:, None] * added).softmax(-1)
        # The gain of a step is at least the relative entropy from the old p to the new one.
        gain = (torch.xlogy(new, new) - torch.xlogy(new, p[rows].clamp_min(torch.finfo(p.dtype).tiny))).sum(-1)
        p[rows] = new
        rows = rows[gain > 1e-3 * tolerance[rows]]
        if not len(rows):
            break
    return Incumbent(p, *value_at(ball, a, y, p, gamma))
