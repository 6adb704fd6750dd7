"""Train for a given radius of the W_1 ball without bounds, for a linear model with cross-entropy.

Let L be the largest ``||w_j - w_k||_*`` of two classes and kappa the label cost. The dual of the worst expected loss is

    inf over gamma >= L of  gamma radius + E max over k of [loss(x, k) - gamma kappa 1(k != y)],

because below L the supremum over x is infinite, and from L on no move of x gains (for two classes: Shafieezadeh-Abadeh,
Mohajerin Esfahani and Kuhn, "Distributionally robust logistic regression", NeurIPS 2015). The part of the budget that
labels do not use pays for a little mass that moves ever farther along the steepest direction. It adds ``L (radius -
cost of the labels)``. With fixed labels this is ``E[loss] + L radius``.

With ``gamma = L + excess``, an excess that all clients share, the gradient in the parameters is a mean over examples,

    E[gradient of loss(x, k*)] + (radius - E[cost of k*]) gradient of L,

so federated training needs no other messages for it. The excess falls while the mean cost of labels over a round's
local steps is below the radius, and rises while it is above, by a proportional factor. A single step is not enough,
because the labels that change differ from step to step.
"""

import math

import torch
from torch import Tensor

from wafl.base.norms import dual, power_norm, steepest
from wafl.objectives.base import Move, ObjectiveState, Term, lane_scalar
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem


def known_slopes(problem: Problem, norm: float, cost_matrix: Tensor | None = None) -> Tensor:
    """Return the largest slope of the loss for each label, ``[L, C]``, in a ball with this cost matrix."""
    loss, slopes = problem.output_loss, None
    if problem.linear is not None and loss.convex:
        weight = problem.linear[0]
        slopes = loss.slopes(weight if cost_matrix is None else weight @ cost_matrix, norm)
    if slopes is None:
        raise ValueError(
            "power=1 without bounds is known only for a linear model with cross-entropy; "
            "elsewhere the supremum may be infinite: give bounds=(low, high)"
        )
    return slopes


def descend_dual(
    problem: Problem, x: Inputs, y: Tensor, state: ObjectiveState, radius: float, norm: float, label_cost: float
) -> Move:
    """Return the changed labels, and the terms that the model descends; ``state`` may set a radius per lane."""
    radii = lane_scalar(state, "radius", radius, problem.params)
    excess = lane_scalar(state, "excess", 0.0, problem.params)
    slope = known_slopes(problem, norm).amax(-1)
    outputs = problem.outputs(x)
    value, y_adv, toll = _labels_that_pay(problem, outputs, y, slope + excess, label_cost)
    ones = torch.ones_like(value)
    weight = ones if state.weight is None else state.weight
    paid = (weight * toll).sum(1) / weight.sum(1).clamp_min(torch.finfo(weight.dtype).tiny)
    escapes = torch.where(excess > 0, 0.0, (radii - paid).clamp_min(0.0))
    at_rest = Term(x, problem.output_loss.gradient(outputs, y_adv))
    terms = (at_rest, *_steeper(problem, x, radii[:, None] - toll, norm))
    return Move(x, y_adv, value, toll + escapes[:, None], ones.bool(), state=state, terms=terms)


def _labels_that_pay(
    problem: Problem, outputs: Tensor, y: Tensor, gamma: Tensor, label_cost: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``max over k of loss(x, k) - gamma label_cost 1(k != y)``, its k, and that label's cost.

    Each has the shape ``[L, B]``.
    """
    loss = problem.output_loss.value(outputs, y)
    if math.isinf(label_cost):
        return loss, y, torch.zeros_like(loss)
    every = torch.stack([problem.output_loss.value(outputs, torch.full_like(y, k)) for k in range(outputs.shape[-1])])
    best, label = (every - (gamma * label_cost)[:, None]).max(0)
    pays = best > loss
    return torch.where(pays, best, loss), torch.where(pays, label, y), label_cost * pays.to(loss)


def _steeper(problem: Problem, x: Inputs, factor: Tensor, norm: float) -> tuple[Term, Term]:
    """Return ``factor [L, B]`` times the gradient of L.

    This is the gradient of ``s_j - s_k`` of the farthest classes at the steepest v, minus the gradient at 0.
    """
    assert problem.linear is not None
    weight, lanes = problem.linear[0], torch.arange(x.lanes, device=factor.device)
    classes = weight.shape[1]
    apart = torch.stack([power_norm(weight - weight[:, [k]], dual(norm), 1) for k in range(classes)], dim=1)
    farthest = apart.flatten(1).argmax(1)
    j, k = farthest // classes, farthest % classes
    v = steepest(weight[lanes, j] - weight[lanes, k], norm)
    at_rest = weight.new_zeros(()).expand(x.lanes, *x.base.shape[1:])
    moved = v.view(x.lanes, 1, *x.base.shape[2:]).expand_as(at_rest)
    every = torch.eye(classes, dtype=weight.dtype, device=weight.device)
    slopes = factor[..., None] * (every[j] - every[k])[:, None]
    return Term(moved, slopes), Term(at_rest, -slopes)
