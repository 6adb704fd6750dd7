"""Bound phi_gamma of a linear model with cross-entropy from above, around the end point of an ascent.

With the notation of ``incumbents.py``, let f be ``<p, A> + H(p) + size(p)^2 / (4 gamma)`` and p0 any point inside
the simplex. H differs from its tangent at p0 by a relative entropy, and the quadratic from its tangent by a quadratic,
so

    f(p) = f(p0) + <gradient f(p0), p - p0> - KL(p, p0) + ||sum_j (p_j - p0_j) w_j||^2 / (4 gamma)     exactly.

The linear term is at most ``max_j g_j - <p0, g>``, next to nothing where the ascent has settled. As for the last two,
the quadratic is ``max over u of <sum_j (p_j - p0_j) w_j, u> - gamma ||u||^2``, and by Donsker and Varadhan's formula
for the relative entropy they are at most

    sup over u of  log sum_j p0_j exp(<u, x_j>) - gamma ||u||^2,        x_j = w_j - sum_k p0_k w_k.

Along ``u = t e`` with a unit vector e, ``z_j = <e, x_j>`` has the mean 0 under p0 and is at most ``||x_j||``. The
function ``h(s) = (exp(s) - 1 - s) / s^2`` increases, so, as in Bennett's inequality,

    sum_j p0_j exp(t z_j) <= 1 + t^2 r(t),      r(t) = largest eigenvalue of  sum_j p0_j h(t ||x_j||) x_j x_j^T,

for every e at once. r increases, so on an interval of t its value at the end is enough, with which
``log(1 + r t^2) - gamma t^2`` is largest at ``t^2 = 1 / gamma - 1 / r``. From ``max_j ||x_j|| / gamma`` on there is
nothing to gain. For small t no bound is tighter: it is 0 where f is concave at p0.

**l_inf.** Its ball lies in ellipsoids. For any weights ``s_d > 0`` of the inputs, ``||g||_1^2 <= S sum_d g_d^2 / s_d``
with ``S = sum_d s_d``, and both are equal where s is proportional to ``|g|``. With ``g = sum_j p_j (w_j - w_y)``,
size(p)^2 is therefore at most its l2 value for the rows ``sqrt(S / s) w_j``, which the above bounds. Around the p
of an ascent nothing is lost if ``s = |g|``. Inputs that hardly count there but do nearby make the ellipsoid long, so
``s_d^2 = g_d^2 + k v_d`` with the variance ``v_d`` of ``w_jd`` under p. The loss at p grows almost linearly
with k, so k is chosen by the allowed loss there, a share of the tolerance.
"""

import torch
from torch import Tensor

from wafl.theory.phi.incumbents import CHUNK, SETTLED, Ball, Incumbent, Summit, at_once, settle, tangent_rise, value_of

PIECES, MOST_HALVINGS = 8, 7
"""The initial number of intervals of t in an example's search, and the maximum number of times that one is halved."""
NEAR, CLOSE = 2.0, 0.1
"""The largest bound worth refining, as a multiple of the tolerance, and the precision of the search, as a share of
it."""
CACHED, MATRICES = 1 << 19, 1 << 15
"""The maximum number of numbers in the matrices processed at a time, and the number of matrices that a GPU's solver
takes."""
LARGEST_EXPONENT = 500.0
"""The largest exponent; beyond it float64 would overflow, at gammas far smaller than any that a radius asks for."""
ROUNDED_UP = 1.0 + 1e-9
"""A factor above the possible rounding of an eigenvalue in float64."""
SHARES = (0.3, 0.9)
"""The shares of the tolerance that an ellipsoid may lose at the p of an ascent, tried one after another."""
SPREAD, LEAST_SPREAD = 0.03, 1e-4
"""The initial factor of the variance, and the smallest."""
LEAST_WEIGHT = 1e-6
"""The smallest weight, relative to a typical weight of the model."""
ELLIPSOID_STEPS = 60


def settled_above(ball: Ball, a: Tensor, y: Tensor, best: Incumbent, gamma: float, allowed: Tensor) -> Summit:
    """Return the ends of the ascents of ``best``, and how much higher the maximum may be.

    That is infinite if it is not near ``allowed``.
    """
    if not (gamma > 0.0 and ball.even):
        return Summit(best.p, best.value, best.cost, torch.full_like(allowed, torch.inf))
    top = settle(ball, a, y, best.p, gamma, allowed)
    beyond = above_tangent(ball.gram.expand(len(a), -1, -1), top.p, gamma, allowed - top.missed)
    return Summit(top.p, top.value, top.cost, top.missed + beyond)


def above_tangent(grams: Tensor, p: Tensor, gamma: float, enough: Tensor) -> Tensor:
    """Bound how far f of ``grams [n, C, C]`` may lie above its tangent at each p; infinity if not near ``enough``."""
    size = max(1, min(at_once(CACHED, p.device) // p.shape[1] ** 2, MATRICES) // PIECES)
    pieces = zip(grams.split(size), p.split(size), enough.split(size), strict=True)
    return torch.cat([_above_tangent(*piece, gamma) for piece in pieces])


def _above_tangent(grams: Tensor, p: Tensor, enough: Tensor, gamma: float) -> Tensor:
    mean = torch.bmm(grams, p[..., None])[..., 0]
    inner = grams - mean[:, None, :] - mean[:, :, None] + (mean * p).sum(-1)[:, None, None]
    lengths = inner.diagonal(dim1=1, dim2=2).clamp_min(0.0).sqrt()
    above, end = torch.full_like(enough, torch.inf), lengths.amax(-1) / gamma
    rows = (end * lengths.amax(-1) < LARGEST_EXPONENT).nonzero()[:, 0]
    at_rest = _bend(inner, p, lengths, rows, torch.zeros_like(end[rows]))
    rows = rows[_most(at_rest, torch.zeros_like(at_rest), end[rows], gamma) <= NEAR * enough[rows]]
    if len(rows):
        above[rows] = _beyond(inner[rows], p[rows], lengths[rows], end[rows], enough[rows], gamma)
    return above


def _beyond(inner: Tensor, p: Tensor, lengths: Tensor, end: Tensor, enough: Tensor, gamma: float) -> Tensor:
    """Return an upper bound on ``sup over t up to end of log(1 + t^2 r(t)) - gamma t^2``."""
    most = torch.zeros_like(enough)
    owner = torch.arange(len(p), device=p.device).repeat_interleave(PIECES)
    index, width = torch.arange(PIECES, device=p.device).repeat(len(p)).to(p), end[owner] / PIECES
    left, right = index * width, (index + 1.0) * width
    bend = _bend(inner, p, lengths, owner, right)
    for halving in range(MOST_HALVINGS + 1):
        value = _most(bend, left, right, gamma)
        least = _gain(bend, right.square(), gamma)
        most = most.index_fill(0, owner[least > NEAR * enough[owner]], torch.inf)
        wide = (value > enough[owner]) & (value > least + CLOSE * enough[owner])
        wide &= most[owner].isfinite() & (halving < MOST_HALVINGS)
        most = most.scatter_reduce(0, owner[~wide], value[~wide], "amax")
        if not wide.any():
            break
        owner, left, right, bend = owner[wide], left[wide], right[wide], bend[wide]
        middle = (left + right) / 2.0
        bend = torch.cat([_bend(inner, p, lengths, owner, middle), bend])
        owner, left, right = owner.repeat(2), torch.cat([left, middle]), torch.cat([middle, right])
    return most


def _bend(inner: Tensor, p: Tensor, lengths: Tensor, owner: Tensor, t: Tensor) -> Tensor:
    """Return r(t) of the examples ``owner``."""
    s = (t[:, None] * lengths[owner]).clamp_min(1e-3)  # h increases, and cancels near 0
    root = (p[owner] * ((s.expm1() - s) / s.square())).sqrt()
    weighed = root[:, :, None] * inner[owner] * root[:, None, :]
    return ROUNDED_UP * torch.linalg.eigvalsh(weighed)[:, -1].clamp_min(torch.finfo(p.dtype).tiny)


def _most(bend: Tensor, left: Tensor, right: Tensor, gamma: float) -> Tensor:
    """Return the largest ``log(1 + r t^2) - gamma t^2`` for t between ``left`` and ``right``."""
    best = (1.0 / gamma - 1.0 / bend).clamp_min(0.0)
    return _gain(bend, best.maximum(left.square()).minimum(right.square()), gamma)


def _gain(bend: Tensor, square: Tensor, gamma: float) -> Tensor:
    return (bend * square).log1p() - gamma * square


def within_ellipsoids(
    ball: Ball, a: Tensor, y: Tensor, p: Tensor, lower: Tensor, gamma: float, allowed: Tensor
) -> Tensor:
    """Return an upper bound on phi_gamma, ``[n]``, after a search until it is within ``allowed`` of ``lower``."""
    upper = torch.full_like(lower, torch.inf)
    if not (gamma > 0.0 and ball.even):
        return upper
    rows = torch.arange(len(a), device=a.device)
    for share in SHARES:
        size = max(1, at_once(CHUNK, a.device) // ball.weight.numel())
        for some in rows.split(size):
            bound = _in_one(ball, a[some], y[some], p[some], share, lower[some], gamma, allowed[some])
            upper[some] = torch.minimum(upper[some], bound)
        rows = rows[(upper - lower > allowed)[rows]]
    return upper


def _in_one(
    ball: Ball, a: Tensor, y: Tensor, p: Tensor, share: float, lower: Tensor, gamma: float, allowed: Tensor
) -> Tensor:
    square, mean = (ball.lean(y, p) @ ball.weight).square(), p @ ball.weight
    variance = (p @ ball.weight.square() - mean.square()).clamp_min(0.0)
    least = LEAST_WEIGHT * ball.weight.abs().mean().clamp_min(torch.finfo(p.dtype).tiny)
    weights = (square + SPREAD * variance).sqrt() + least
    lost = (weights.sum(1) * (square / weights).sum(1) - square.sqrt().sum(1).square()) / (4.0 * gamma)
    spread = SPREAD * share * allowed / lost.clamp_min(torch.finfo(p.dtype).tiny)
    weights = (square + spread.clamp(LEAST_SPREAD, 1.0)[:, None] * variance).sqrt() + least
    scale = weights.sum(1, keepdim=True) / weights
    rows = ball.weight - mean[:, None]  # around p, so that no digits are lost where a short axis makes numbers large
    grams = torch.bmm(rows * scale[:, None, :], rows.mT)
    value, p, missed = _settled_in(ball, grams, a, y, p, gamma, SETTLED * allowed)
    return value + missed + above_tangent(grams, p, gamma, lower + allowed - value - missed)


def _settled_in(
    ball: Ball, grams: Tensor, a: Tensor, y: Tensor, p: Tensor, gamma: float, enough: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value at the end of each ascent in l2, that p, and the rise of the tangent there."""
    for _ in range(ELLIPSOID_STEPS):
        new, missed = _step(grams, a, ball.lean(y, p), p, gamma)
        far = missed > enough
        if not far.any():
            break
        p = torch.where(far[:, None], new, p)  # one that has settled stays, whatever its neighbors do
    lean = ball.lean(y, p)
    square = (torch.bmm(grams, lean[..., None])[..., 0] * lean).sum(-1)
    return value_of(a, p, square, gamma), p, _step(grams, a, lean, p, gamma)[1]


def _step(grams: Tensor, a: Tensor, lean: Tensor, p: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Return the next p, and the rise of the tangent at this one."""
    logs = (a + torch.bmm(grams, lean[..., None])[..., 0] / (2.0 * gamma)).log_softmax(-1)
    return logs.exp(), tangent_rise(logs, p)
