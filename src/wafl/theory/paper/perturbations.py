"""Check that perturbations of single examples lie inside a Wasserstein ball (the paper's appendix A)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wafl.base.checks import check_positive
from wafl.base.norms import check_norm, power_norm
from wafl.base.options import Choice


def inside_ball(
    perturbations: Any, *, radius: float, norm: float = 2, power: int = 2, weights: Sequence[float] | None = None
) -> bool:
    """Return whether moved examples surely stay within ``radius`` of the original ones, in W_p.

    Moving every example to its new position is one plan, so ``W_p^p <= sum_i w_i ||u_i||^p``. If that is at most
    ``radius^p``, up to rounding, the moved examples are inside the ball for sure; if not, another plan may still be
    cheaper. Moves of at most epsilon each are inside the ball of radius epsilon, for every p and norm. So the worst
    of them is no worse than the worst distribution in the ball, which may also move few examples far. The paper shows
    this for p = 1.

    Args:
        perturbations: the move of each example, ``[N, ...]``.
        radius: the radius of the ball.
        norm: the ground norm: 1, 2 or inf.
        power: p, the order of the distance: 1 or 2.
        weights: the weights of the examples; by default equal.

    >>> inside_ball([[0.3, 0.4], [0.0, 0.0]], radius=0.4), inside_ball([[0.3, 0.4], [0.3, 0.4]], radius=0.4)
    (True, False)
    """
    check_positive("radius", radius)
    check_norm(norm)
    Choice((1, 2), ", the order of the distance").check("power", power)
    given = torch.as_tensor(perturbations)
    rounding = 8.0 * torch.finfo(given.dtype).eps if given.is_floating_point() else 0.0
    moves = given.to(torch.float64)
    if moves.ndim < 2 or len(moves) == 0 or not bool(torch.isfinite(moves).all()):
        raise ValueError(
            f"perturbations of shape {tuple(moves.shape)} must be finite numbers [N, ...], one row per example"
        )
    cost = float(_shares(weights, len(moves)) @ power_norm(moves.flatten(1), norm, power))
    return cost <= radius**power * (1.0 + rounding)


def _shares(weights: Sequence[float] | None, count: int) -> Tensor:
    given = torch.ones(count, dtype=torch.float64) if weights is None else torch.as_tensor(weights, dtype=torch.float64)
    if given.shape != (count,) or not bool((given >= 0).all()) or not 0 < float(given.sum()) < float("inf"):
        raise ValueError(f"weights must be {count} numbers of at least 0, one per example, and not all 0")
    return given / given.sum()
