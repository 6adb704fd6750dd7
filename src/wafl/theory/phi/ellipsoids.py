"""phi_gamma of a linear model with cross-entropy from above, for l_inf: its ball lies in ellipsoids.

For any weights ``s_d > 0`` of the inputs, ``||g||_1^2 <= S sum_d g_d^2 / s_d`` with ``S = sum_d s_d``, and both are
equal where s is proportional to ``|g|``. With the notation of :mod:`wafl.theory.phi.class_pull` and
``g = sum_j p_j (w_j - w_y)``, size(p)^2 is therefore at most what it is in l2 for the rows ``sqrt(S / s) w_j``, and
:mod:`wafl.theory.phi.settled` bounds that. Around the p of an ascent nothing is lost if ``s = |g|``; inputs that hardly
count there make the ellipsoid long, so a share of the mean is added.
"""

import torch
from torch import Tensor

from wafl.theory.phi.class_pull import CHUNK, Ball
from wafl.theory.phi.incumbents import SETTLED, tangent_rise, value_of
from wafl.theory.phi.settled import above_tangent

SHARES = (0.1, 0.3, 0.03)
"""What of the mean of ``|g|`` is added to each input's, one after another."""
LEAST = 1e-6
"""Every weight is at least this part of a typical one of the model."""
STEPS = 60


def within_ellipsoids(
    ball: Ball, a: Tensor, y: Tensor, p: Tensor, lower: Tensor, gamma: float, allowed: Tensor
) -> Tensor:
    """What phi_gamma is not above, ``[n]``: searched until it is within ``allowed`` of ``lower``."""
    upper = torch.full_like(lower, torch.inf)
    if not (gamma > 0.0 and ball.even):
        return upper
    rows = torch.arange(len(a), device=a.device)
    for share in SHARES:
        size = max(1, CHUNK // ball.weight.numel())
        for some in rows.split(size):
            found = _in_one(ball, a[some], y[some], p[some], share, lower[some], gamma, allowed[some])
            upper[some] = torch.minimum(upper[some], found)
        rows = rows[(upper - lower > allowed)[rows]]
    return upper


def _in_one(
    ball: Ball, a: Tensor, y: Tensor, p: Tensor, share: float, lower: Tensor, gamma: float, allowed: Tensor
) -> Tensor:
    pull = (ball.lean(y, p) @ ball.weight).abs()
    least = LEAST * ball.weight.abs().mean().clamp_min(torch.finfo(p.dtype).tiny)
    weights = pull + (share * pull.mean(1, keepdim=True)).clamp_min(least)
    scale = weights.sum(1, keepdim=True) / weights
    grams = torch.matmul(ball.weight * scale[:, None, :], ball.weight.T)
    value, p, missed = _settled(ball, grams, a, y, p, gamma, SETTLED * allowed)
    return value + missed + above_tangent(grams, p, gamma, lower + allowed - value - missed)


def _settled(
    ball: Ball, grams: Tensor, a: Tensor, y: Tensor, p: Tensor, gamma: float, enough: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The value where each ascent in l2 settles, that p, and by how much the tangent rises there."""
    for _ in range(STEPS):
        new, missed = _step(grams, a, ball.lean(y, p), p, gamma)
        far = missed > enough
        if not far.any():
            break
        p = torch.where(far[:, None], new, p)  # one that has settled stays, whatever its neighbors do
    lean = ball.lean(y, p)
    square = (torch.bmm(grams, lean[..., None])[..., 0] * lean).sum(-1)
    return value_of(a, p, square, gamma), p, _step(grams, a, lean, p, gamma)[1]


def _step(grams: Tensor, a: Tensor, lean: Tensor, p: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """The next p, and by how much the tangent at this one rises."""
    logs = (a + torch.bmm(grams, lean[..., None])[..., 0] / (2.0 * gamma)).log_softmax(-1)
    return logs.exp(), tangent_rise(logs, p)
