"""Implement relatives of the Wasserstein ball: the Sinkhorn ball, and the outlier-resilient ball.

The Sinkhorn ball is transport with entropy and the squared l2 cost: its worst case is spread out, not one point.

The outlier-resilient ball is a Wasserstein ball around the examples that the model can explain, after Wang et al.,
"Distributionally robust federated learning with outlier resilience" (2509.24462). The paper's ambiguity set moves
examples at a transport price and reweights them at a Kullback-Leibler price. A supremum over the weights, too, would
give *more* weight to the examples with the largest losses, and therefore to garbage: ``exp(+phi / temperature)``. Here
the center is the best explained reweighting of the data, an infimum, so that garbage loses weight. This sign differs
from the paper.
"""

import math
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.norms import typical_price
from wafl.base.options import Count, Positive, Range, Tunable, frozen, maker, part
from wafl.base.random import normal
from wafl.objectives.ball.wasserstein import Wasserstein
from wafl.objectives.base import Move, Objective, ObjectiveState, Term, lane_scalar, random_starts
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem


@frozen
class Sinkhorn(Objective):
    """Descend ``gamma eps log E exp(loss(x + d) / (gamma eps))`` over Gaussian moves d, with ``eps = 2 noise^2``.

    As the noise falls, this tends to WAFL's ``sup over d of loss(x + d) - gamma ||d||^2``. The mean is estimated by
    importance sampling: moves are drawn around that supremum, because draws around the example itself rarely reach it
    if the noise is small. An estimate from few samples lies below the mean; more samples reduce the difference.

    Moved examples may leave the bounds of the data, as the Gaussian does.
    """

    gamma: Annotated[
        float, Positive(": a smaller gamma is a larger ball"), Tunable(30.0, "high", typical_price),
        "The price of transport; smaller is a larger ball."
    ] = 0.5  # fmt: skip
    noise: Annotated[
        float,
        Positive("; without noise use WAFL"),
        Tunable(),
        "The standard deviation of the moves without a loss, in the units of the data.",
    ] = 0.1
    samples: Annotated[int, Count(), "The number of moves to draw per example."] = 4
    steps: Annotated[int, Count(), "The maximum number of ascent steps to the point around which moves are drawn."] = 15
    tolerance: Annotated[
        float,
        Range(0, 1, "; 0 takes all steps", high_open=True),
        "The distance from its fixed point at which an example stops.",
    ] = 1e-3

    def scalars(self) -> dict[str, float]:
        """Return gamma and the noise."""
        return {"gamma": self.gamma, "noise": self.noise}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the sampled moves, with the terms of the weighted samples."""
        gamma, noise = (
            lane_scalar(state, name, value, problem.params)[:, None] for name, value in self.scalars().items()
        )
        peak = Wasserstein(self.gamma, steps=self.steps, tolerance=self.tolerance, bounds=None)
        move = peak(problem, x, y, state)
        x, top = dense(x), move.x_adv
        count = math.prod(x.shape[2:])
        draws = random_starts(normal, state, x, (y.shape[1], self.samples, count))
        shifts = [noise.view(-1, *[1] * (x.ndim - 1)) * draw.reshape(x.shape) for draw in draws]
        points = [top + shift for shift in shifts]
        outputs = [problem.outputs(point) for point in points]
        losses = torch.stack([problem.output_loss.value(output, y) for output in outputs], dim=-1)
        # Dividing by the density of the draws turns ||shift||^2 of the exponent into ||d||^2, d the whole move.
        away = (top - x).flatten(2)
        farther = torch.stack([(away * (away + 2.0 * shift.flatten(2))).sum(-1) for shift in shifts], dim=-1)
        scale = 2.0 * gamma * noise.square()
        exponents = (losses - gamma[..., None] * farther) / scale[..., None]
        shares = exponents.softmax(-1)  # along the last axis, where ARM too rounds a lane alone as among others
        terms = tuple(
            Term(point, share[..., None] * problem.output_loss.gradient(output, y))
            for point, share, output in zip(points, shares.unbind(-1), outputs, strict=True)
        )
        value = scale * (exponents.logsumexp(-1) - math.log(self.samples))
        paid = torch.stack([(away + shift.flatten(2)).square().sum(-1) for shift in shifts], dim=-1)
        cost = (shares * paid).sum(-1)
        return replace(move, inputs=points[0], y_adv=y, value=value, cost=cost, terms=terms)


@frozen
class Resilient(Wasserstein):
    """Descend ``min over w of E_w[phi_gamma] + temperature KL(w, batch)``, with WAFL's ``phi_gamma`` of each example.

    The minimum is ``-temperature log E exp(-phi_gamma / temperature)``, at weights in proportion to ``exp(-phi_gamma /
    temperature)`` within each batch: an example whose robust loss is a few temperatures above the others hardly counts.
    As the temperature rises, this tends to WAFL.
    """

    temperature: Annotated[
        float,
        Positive("; to leave nothing out use WAFL"),
        Tunable(gentle="high"),
        "The price of ignoring examples, in units of the loss; a lower price ignores more examples.",
    ] = 1.0

    def scalars(self) -> dict[str, float]:
        """Return the scalars of the ball, and the temperature."""
        return {**super().scalars(), "temperature": self.temperature}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the moved examples, with the weights of the reweighted batch."""
        move = part(self, Wasserstein)(problem, x, y, state)
        if move.terms and math.isfinite(self.label_cost):
            raise ValueError(
                f"label_cost={self.label_cost:g} with power=1 and a radius needs bounds=(low, high) here, or power=2"
            )
        temperature = lane_scalar(state, "temperature", self.temperature, problem.params)[:, None]
        share = torch.ones_like(move.value) if state is None or state.weight is None else state.weight
        value, factor = best_explained(move.value, share, temperature)
        slopes = factor[..., None] * problem.output_loss.gradient(problem.outputs(move.inputs), move.y_adv)
        terms = (Term(move.inputs, slopes), *move.terms[1:])
        return replace(move, value=value.expand_as(factor), cost=factor * move.cost, terms=terms)


def best_explained(losses: Tensor, share: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``min over w of sum_b w_b loss_b + temperature KL(w, share)``, ``[L, 1]``, and w's factor of the share."""
    share = share / share.sum(1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)
    exponents = -losses / temperature
    total = torch.where(share > 0, share.log() + exponents, -torch.inf).logsumexp(1, keepdim=True)
    return -temperature * total, torch.where(share > 0, (exponents - total).exp(), 0.0)


sinkhorn = maker(Sinkhorn)
resilient = maker(Resilient)
