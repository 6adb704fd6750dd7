"""The outlier-resilient ball: a Wasserstein ball around those of the examples that the model can explain.

After Wang et al., "Distributionally robust federated learning with outlier resilience" (2509.24462), whose ambiguity
set moves examples at a transport price and reweights them at a Kullback-Leibler price. A supremum over the weights too
would give the examples with the largest losses, and so garbage, *more* weight: ``exp(+phi / temperature)``. Here the
center is the best explained reweighting of the data, an infimum, so that garbage loses weight. That sign is ours.
"""

import math
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, Tunable, frozen, maker, part
from wafl.objectives.ball.wasserstein import Wasserstein
from wafl.objectives.base import Move, ObjectiveState, Term, lane_scalar
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem


@frozen
class Resilient(Wasserstein):
    """Descend ``min over w of E_w[phi_gamma] + temperature KL(w, batch)``, with WAFL's ``phi_gamma`` of each example.

    The minimum is ``-temperature log E exp(-phi_gamma / temperature)``, at weights in proportion to
    ``exp(-phi_gamma / temperature)`` within each batch: an example whose robust loss is a few temperatures above that
    of the others hardly counts. As the temperature rises, this tends to WAFL.
    """

    temperature: Annotated[
        float,
        Positive("; to leave nothing out use WAFL"),
        Tunable(gentle="high"),
        "The price of leaving examples out, in units of the loss; a smaller one leaves out more.",
    ] = 1.0

    def scalars(self) -> dict[str, float]:
        return {**super().scalars(), "temperature": self.temperature}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
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
    """``min over w of sum_b w_b loss_b + temperature KL(w, share)``, ``[L, 1]``, and w's factor of each share."""
    share = share / share.sum(1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)
    exponents = -losses / temperature
    total = torch.where(share > 0, share.log() + exponents, -torch.inf).logsumexp(1, keepdim=True)
    return -temperature * total, torch.where(share > 0, (exponents - total).exp(), 0.0)


resilient = maker(Resilient)
