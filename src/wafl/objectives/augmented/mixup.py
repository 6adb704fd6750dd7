"""Mixup: training on mixtures of two examples of a batch.

Zhang, Cissé, Dauphin and Lopez-Paz, "mixup: Beyond empirical risk minimization" (ICLR 2018). As in the authors' code,
each example is mixed with another one of its batch, and one weight is drawn per batch.
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, Tunable, frozen, maker
from wafl.base.random import Purpose, permutation, uniform
from wafl.objectives.base import Move, Objective, ObjectiveState, Term, lane_key, lane_scalar
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem


@frozen
class Mixed(Objective):
    """Descend ``t loss(m, y_i) + (1 - t) loss(m, y_j)`` at ``m = t x_i + (1 - t) x_j``, with t from Beta(alpha, alpha).

    The examples j are those of the same client's batch in a random order. For cross-entropy and the squared error this
    has the gradient of the loss at the mixed label.
    """

    alpha: Annotated[
        float, Positive("; without mixing use FedAvg"), Tunable(), "How evenly examples are mixed; near 0 not at all."
    ] = 0.2

    def scalars(self) -> dict[str, float]:
        return {"alpha": self.alpha}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        x, state = dense(x), state or ObjectiveState()
        key, loss = lane_key(state, x), problem.output_loss
        alpha = lane_scalar(state, "alpha", self.alpha, problem.params).double()
        share = symmetric_beta(alpha, uniform(key, Purpose.START + 256, 2)).to(x)[:, None]
        real = x.new_ones(x.shape[:2]) if state.weight is None else state.weight
        order = permutation(key, Purpose.START, (real > 0).sum(1), x.shape[1])

        def others(values: Tensor) -> Tensor:
            return values.take_along_dim(order.view(*order.shape, *(1,) * (values.ndim - 2)), dim=1)

        mixed = x.lerp(others(x), (1.0 - share).view(-1, *(1,) * (x.ndim - 1)))
        outputs, y_other = problem.outputs(mixed), others(y)
        value = share * loss.value(outputs, y) + (1.0 - share) * loss.value(outputs, y_other)
        own, other = (loss.gradient(outputs, label) for label in (y, y_other))
        slopes = share[..., None] * own + (1.0 - share)[..., None] * other
        cost = (mixed - x).flatten(2).square().sum(-1)
        return Move(mixed, y, value, cost, torch.ones_like(cost, dtype=torch.bool), state, (Term(mixed, slopes),))


def symmetric_beta(alpha: Tensor, draws: Tensor) -> Tensor:
    """A number from Beta(alpha, alpha) for each ``alpha [L]``, made from two uniform ones ``draws [L, 2]``.

    With t from Student's distribution with ``2 alpha`` degrees of freedom it is ``1/2 + t / (2 sqrt(2 alpha + t^2))``,
    and ``t = sqrt(2 alpha (u^(-1 / alpha) - 1)) cos(2 pi v)`` (Bailey, "Polar generation of random variates with the
    t-distribution", Mathematics of Computation 1994): no draw is refused, so a captured step can make it.
    """
    cosine = torch.cos(2.0 * math.pi * draws[:, 1])
    odds = torch.expm1(-torch.log1p(-draws[:, 0]) / alpha)
    return 0.5 + 0.5 * cosine / torch.sqrt(cosine.square() + 1.0 / odds)


mixup = maker(Mixed)
