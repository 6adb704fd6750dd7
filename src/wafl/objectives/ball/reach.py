"""Estimate the gamma at which a batch moves a given distance.

A learned gamma lags behind the model, and the longer moves could destroy the model.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from wafl.base.bounds import Box
from wafl.base.norms import dual, power_norm
from wafl.objectives.ball.ascent import Room, linear_maximizer
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem

STEPS = 4
"""The number of linearizations of the loss; with a convex loss, the first one bounds the moves from below."""


def gamma_of_reach(
    problem: Problem, x: Inputs, y: Tensor, weight: Tensor | None, reach: Tensor, norm: float, bounds: Box | None
) -> Tensor:
    """Estimate the gamma ``[L]`` at which a batch's moves d have ``sqrt(mean ||d||^2) = reach [L]``, at squared cost.

    The linearized loss moves by ``||g||_* / (2 gamma)``, so ``gamma = rms ||g||_* / (2 reach)``, where g is the
    gradient at the last move of that length.
    """
    share = reach.new_full(y.shape[:2], 1.0 / y.shape[1]) if weight is None else weight

    def rms(squares: Tensor) -> Tensor:
        return (share * squares).sum(1).sqrt()

    if norm == 2 and bounds is None and problem.linear is not None:
        return _by_outputs(problem, x, y, problem.linear[0], rms, reach)
    x_rest = x.dense()
    flat = x_rest.flatten(2)
    room = None if bounds is None else Room.within(flat, bounds)
    # If bounds cut moves short, only the part ``kept`` of gamma is left.
    gradient, kept = problem.gradient(x_rest, y).flatten(2), torch.ones_like(reach)
    gamma = _positive(rms(power_norm(gradient, dual(norm), 2)) / (2.0 * reach))
    for _ in range(STEPS - 1):
        delta = linear_maximizer(gradient, gamma, norm, 2, room)
        if room is not None:
            kept = kept * rms(power_norm(delta, norm, 2)) / reach
        gradient = problem.gradient(x_rest + delta.view_as(x_rest), y).flatten(2)
        gamma = _positive(kept * rms(power_norm(gradient, dual(norm), 2)) / (2.0 * reach))
    return gamma


def _by_outputs(
    problem: Problem, x: Inputs, y: Tensor, weight: Tensor, rms: Callable[[Tensor], Tensor], reach: Tensor
) -> Tensor:
    """Estimate the gamma of a linear model.

    With v the gradient in the outputs and ``G = W W^T``, ``||g||^2 = v^T G v``.
    """
    gram = torch.bmm(weight, weight.mT)
    at_rest = outputs = problem.task.outputs(problem.params, x)
    gamma = reach
    for _ in range(STEPS):
        pull = problem.output_loss.gradient(outputs, y)
        change = torch.bmm(pull, gram)
        gamma = _positive(rms((pull * change).sum(-1).clamp_min(0.0)) / (2.0 * reach))
        outputs = at_rest + change / (2.0 * gamma[:, None, None])
    return gamma


def _positive(gamma: Tensor) -> Tensor:
    """Return gamma, at least the smallest positive number, since a flat loss has gamma 0."""
    return gamma.clamp_min(torch.finfo(gamma.dtype).tiny)
