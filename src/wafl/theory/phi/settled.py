"""phi_gamma of a linear model with cross-entropy from above, around the point where an ascent has settled (l2).

With the notation of ``class_pull.py``, let f be ``<p, A> + H(p) + size(p)^2 / (4 gamma)`` and p0 any point inside
the simplex. H differs from its tangent at p0 by a relative entropy, and the quadratic from its own by a quadratic, so

    f(p) = f(p0) + <gradient f(p0), p - p0> - KL(p, p0) + ||sum_j (p_j - p0_j) w_j||^2 / (4 gamma)     exactly.

The linear term is at most ``max_j g_j - <p0, g>``, next to nothing where the ascent has settled. As for the last two,
the quadratic is ``max over u of <sum_j (p_j - p0_j) w_j, u> - gamma ||u||^2``, and by Donsker and Varadhan's formula
for the relative entropy they are at most

    sup over u of  log sum_j p0_j exp(<u, x_j>) - gamma ||u||^2,        x_j = w_j - sum_k p0_k w_k.

Along ``u = t e`` with a unit vector e, ``z_j = <e, x_j>`` has the mean 0 under p0 and is at most ``||x_j||``. The
function ``h(s) = (exp(s) - 1 - s) / s^2`` increases, so, as in Bennett's inequality,

    sum_j p0_j exp(t z_j) <= 1 + t^2 r(t),      r(t) = largest eigenvalue of  sum_j p0_j h(t ||x_j||) x_j x_j^T,

for every e at once. r increases, so on an interval of t its value at the end will do, with which
``log(1 + r t^2) - gamma t^2`` is largest at ``t^2 = 1 / gamma - 1 / r``. From ``max_j ||x_j|| / gamma`` on there is
nothing to gain. For small t no bound is tighter: it is 0 where f is concave at p0.
"""

import torch
from torch import Tensor

from wafl.theory.phi.class_pull import Ball, at_once
from wafl.theory.phi.incumbents import Incumbent, Summit, settle

PIECES, MOST_HALVINGS = 8, 7
"""Into how many intervals of t an example's search begins, and how often one is halved at most."""
NEAR, CLOSE = 2.0, 0.1
"""How many times the tolerance is still worth finding, and within what part of it."""
CACHED, MATRICES = 1 << 19, 1 << 15
"""How many numbers the matrices that are worked on at a time may have, and how many of these a GPU's solver takes."""
LARGEST_EXPONENT = 500.0
"""Of an exponential; beyond it float64 would overflow, at gammas far smaller than any that a radius asks for."""
ROUNDED_UP = 1.0 + 1e-9
"""More than float64 may lose of an eigenvalue."""


def settled_above(ball: Ball, a: Tensor, y: Tensor, best: Incumbent, gamma: float, allowed: Tensor) -> Summit:
    """Where the ascents of ``best`` end, and how much higher the maximum may be: infinity if not near ``allowed``."""
    if not (gamma > 0.0 and ball.even):
        return Summit(best.p, best.value, best.cost, torch.full_like(allowed, torch.inf))
    found = settle(ball, a, y, best.p, gamma, allowed)
    beyond = above_tangent(ball.gram.expand(len(a), -1, -1), found.p, gamma, allowed - found.missed)
    return Summit(found.p, found.value, found.cost, found.missed + beyond)


def above_tangent(grams: Tensor, p: Tensor, gamma: float, enough: Tensor) -> Tensor:
    """By how much f of ``grams [n, C, C]`` may lie above its tangent at each p; infinity if not near ``enough``."""
    size = max(1, min(at_once(CACHED, p.device) // p.shape[1] ** 2, MATRICES) // PIECES)
    parts = zip(grams.split(size), p.split(size), enough.split(size), strict=True)
    return torch.cat([_above_tangent(*part, gamma) for part in parts])


def _above_tangent(grams: Tensor, p: Tensor, enough: Tensor, gamma: float) -> Tensor:
    mean = torch.bmm(grams, p[..., None])[..., 0]
    inner = grams - mean[:, None, :] - mean[:, :, None] + (mean * p).sum(-1)[:, None, None]
    lengths = inner.diagonal(dim1=1, dim2=2).clamp_min(0.0).sqrt()
    found, end = torch.full_like(enough, torch.inf), lengths.amax(-1) / gamma
    rows = (end * lengths.amax(-1) < LARGEST_EXPONENT).nonzero()[:, 0]
    at_rest = _bend(inner, p, lengths, rows, torch.zeros_like(end[rows]))
    rows = rows[_most(at_rest, torch.zeros_like(at_rest), end[rows], gamma) <= NEAR * enough[rows]]
    if len(rows):
        found[rows] = _beyond(inner[rows], p[rows], lengths[rows], end[rows], enough[rows], gamma)
    return found


def _beyond(inner: Tensor, p: Tensor, lengths: Tensor, end: Tensor, enough: Tensor, gamma: float) -> Tensor:
    """``sup over t up to end of log(1 + t^2 r(t)) - gamma t^2``, from above."""
    found = torch.zeros_like(enough)
    owner = torch.arange(len(p), device=p.device).repeat_interleave(PIECES)
    place, width = torch.arange(PIECES, device=p.device).repeat(len(p)).to(p), end[owner] / PIECES
    left, right = place * width, (place + 1.0) * width
    bend = _bend(inner, p, lengths, owner, right)
    for halving in range(MOST_HALVINGS + 1):
        value = _most(bend, left, right, gamma)
        least = _gain(bend, right.square(), gamma)
        found = found.index_fill(0, owner[least > NEAR * enough[owner]], torch.inf)
        wide = (value > enough[owner]) & (value > least + CLOSE * enough[owner])
        wide &= found[owner].isfinite() & (halving < MOST_HALVINGS)
        found = found.scatter_reduce(0, owner[~wide], value[~wide], "amax")
        if not wide.any():
            break
        owner, left, right, bend = owner[wide], left[wide], right[wide], bend[wide]
        middle = (left + right) / 2.0
        bend = torch.cat([_bend(inner, p, lengths, owner, middle), bend])
        owner, left, right = owner.repeat(2), torch.cat([left, middle]), torch.cat([middle, right])
    return found


def _bend(inner: Tensor, p: Tensor, lengths: Tensor, owner: Tensor, t: Tensor) -> Tensor:
    """r(t) of the examples ``owner``."""
    s = (t[:, None] * lengths[owner]).clamp_min(1e-3)  # h increases, and cancels near 0
    root = (p[owner] * ((s.expm1() - s) / s.square())).sqrt()
    weighed = root[:, :, None] * inner[owner] * root[:, None, :]
    return ROUNDED_UP * torch.linalg.eigvalsh(weighed)[:, -1].clamp_min(torch.finfo(p.dtype).tiny)


def _most(bend: Tensor, left: Tensor, right: Tensor, gamma: float) -> Tensor:
    """The largest ``log(1 + r t^2) - gamma t^2`` for t between ``left`` and ``right``."""
    best = (1.0 / gamma - 1.0 / bend).clamp_min(0.0)
    return _gain(bend, best.maximum(left.square()).minimum(right.square()), gamma)


def _gain(bend: Tensor, square: Tensor, gamma: float) -> Tensor:
    return (bend * square).log1p() - gamma * square
