"""Good moves, found by ascent: phi_gamma of cross-entropy from below.

For every p on the simplex ``<p, A> + H(p) + size(p)^2 / (4 gamma)`` is at most phi_gamma, and its largest value is
phi_gamma: the move of length ``size(p) / (2 gamma)`` along p's own pull attains at least that. The step
``p <- softmax(A + what this move adds)`` never descends.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.theory.phi.class_pull import Ball

RIVALS = 3
"""Toward how many classes the ascent looks before it starts."""
SHARES = (0.5, 1.0)
"""How far along the way to each of them."""
STEPS, FEW_STEPS = 200, 6
"""Ascent steps for l2, and for l_inf, where each step looks at every input."""
SUMMIT_STEPS = 1000
SETTLED = 0.02
"""The share of the tolerance by which the tangent may rise where an ascent has settled."""


@dataclass(frozen=True)
class Incumbent:
    """The best p found for each example, its value, and the squared length of its move."""

    p: Tensor
    value: Tensor
    cost: Tensor


@dataclass(frozen=True)
class Summit(Incumbent):
    """``missed``: how much higher the maximum may be."""

    missed: Tensor


def value_at(ball: Ball, a: Tensor, y: Tensor, p: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """The value of p and the squared length of its move."""
    square = ball.size(y, p).square()
    return value_of(a, p, square, gamma), square / (4.0 * gamma**2)


def value_of(a: Tensor, p: Tensor, square: Tensor, gamma: float) -> Tensor:
    """``<p, A> + H(p) + size(p)^2 / (4 gamma)``."""
    return (p * a).sum(-1) - torch.xlogy(p, p).sum(-1) + square / (4.0 * gamma)


def tangent_rise(logs: Tensor, p: Tensor) -> Tensor:
    """By how much the tangent at p rises at most: ``max_j r_j - <p, r>``, r from log p to the next step's ``logs``."""
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
    """The maximum where the whole is concave in p (l2 and ``2 gamma >= L_zz``): it lies below its tangent anywhere."""
    return _until_settled(ball, a, y, a.softmax(-1), gamma, 1e-4 * tolerance, share=1e-4)


def settle(ball: Ball, a: Tensor, y: Tensor, p: Tensor, gamma: float, tolerance: Tensor) -> Summit:
    """Climb on from p until the tangent there rises by next to nothing; ``missed`` is what it rises by."""
    return _until_settled(ball, a, y, p.clone(), gamma, SETTLED * tolerance)


def _until_settled(
    ball: Ball, a: Tensor, y: Tensor, p: Tensor, gamma: float, enough: Tensor, share: float | None = None
) -> Summit:
    """Until the tangent rises by no more than ``enough``, nor than a ``share`` of what the move gains."""
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
    """softmax where the best of a few moves ends, toward the classes that gain most alone."""
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
