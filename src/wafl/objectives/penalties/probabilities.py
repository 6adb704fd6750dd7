"""Objectives about class probabilities: outputs that hardly change in a ball, or are corrected for a client's labels.

TRADES; CalFAT, which corrects for which classes a client has; and IRM (IRMv1) with clients as environments, whose
outputs must be right at the same scale for every client. IRM moves no example; it adds a penalty.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from wafl.base.options import NotNegative, Tunable, frozen, maker, part
from wafl.objectives.attacked.projected import ProjectedAscent
from wafl.objectives.base import Move, Objective, ObjectiveState, Term, lane_scalar
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.losses import SoftLabels
from wafl.tasks.problem import Problem


@frozen
class Trades(ProjectedAscent):
    """Descend ``loss(x) + beta max KL(p(x), p(x_adv))`` over ``||x_adv - x|| <= epsilon``, p the class probabilities.

    The ascent starts at a random point of the ball, because the divergence is flat at x itself. The gradient goes
    through both ends of the divergence, as in the paper.
    """

    random_start: Annotated[bool, "Start at a random point of the ball."] = True
    beta: Annotated[
        float, NotNegative, Tunable(), "The price of outputs that change in the ball; 0 is plain training."
    ] = 6.0

    def scalars(self) -> dict[str, float]:
        return {**super().scalars(), "beta": self.beta}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        check_classes(problem, "TRADES")
        beta = lane_scalar(state, "beta", self.beta, problem.params)[:, None]
        x = dense(x)
        outputs = problem.outputs(x)
        log_p = outputs.log_softmax(-1)
        p = log_p.exp()
        move = within_ball(self, problem, x, torch.stack([p, torch.zeros_like(p)], -2), state)
        log_q = problem.outputs(move.inputs).log_softmax(-1)
        change = (p * (log_p - log_q)).sum(-1)
        at_rest = problem.output_loss.gradient(outputs, y) + beta[..., None] * p * (log_p - log_q - change[..., None])
        moved = beta[..., None] * (log_q.exp() - p)
        terms = (Term(x, at_rest), Term(move.inputs, moved))
        return replace(move, y_adv=y, value=problem.output_loss.value(outputs, y) + beta * change, terms=terms)


def within_ball(
    options: ProjectedAscent, problem: Problem, x: Tensor, targets: Tensor, state: ObjectiveState | None
) -> Move:
    """Where in the ball the outputs are farthest from soft targets, by projected gradient ascent."""
    inner = part(options, ProjectedAscent)
    return inner(replace(problem, task=problem.task.with_loss(SoftLabels())), x, targets, state)


def check_classes(problem: Problem, name: str) -> None:
    """Refuse a loss that does not make class probabilities of the outputs."""
    if not problem.output_loss.logistic:
        raise ValueError(
            f"{name} compares class probabilities: it needs loss='cross_entropy', not {problem.output_loss.name!r}"
        )


@frozen
class Calibrated(ProjectedAscent):
    """Descend the calibrated cross-entropy at the point of the ball where the calibrated outputs change most.

    Calibrated outputs are ``s + log pi``, where pi holds the shares of the classes among the client's examples. A model
    with these outputs need not learn the client's own shares, so clients with other classes agree on the rest. The
    ascent climbs ``KL(p(x), p(x_adv))`` of the calibrated probabilities, as in the paper.
    """

    random_start: Annotated[bool, "Start at a random point of the ball."] = True
    counts_labels: ClassVar = True

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        check_classes(problem, "CalFAT")
        x = dense(x)
        at_rest = problem.outputs(x)
        shift = _log_shares(state, at_rest)
        p = (at_rest + shift).softmax(-1)
        move = within_ball(self, problem, x, torch.stack([p, shift.expand_as(p)], -2), state)
        outputs = problem.outputs(move.inputs) + shift
        loss = problem.output_loss
        terms = (Term(move.inputs, loss.gradient(outputs, y)),)
        return replace(move, y_adv=y, value=loss.value(outputs, y), terms=terms)


def _log_shares(state: ObjectiveState | None, outputs: Tensor) -> Tensor:
    """The logarithms of the clients' shares of the classes ``[L, 1, C]``, 1e-8 at least; 0 if nobody counted."""
    counts = None if state is None else state.label_counts
    if counts is None:
        return outputs.new_zeros(1)
    counts = pad(counts.to(outputs), (0, outputs.shape[-1] - counts.shape[-1]))
    return (counts / counts.sum(-1, keepdim=True)).clamp_min(1e-8).log()[:, None]


@frozen
class Invariant(Objective):
    """Descend ``loss + penalty D^2``, with D the derivative of the batch's loss in a common factor of the outputs.

    ``D = d/dw mean loss(w s)`` at ``w = 1`` is the mean of ``<s, gradient of the loss in s>``. The derivative of a mean
    over a batch is an estimate, so its square is larger than that of all the client's examples.
    """

    penalty: Annotated[
        float, NotNegative, Tunable(30.0), "The price of outputs that a client would scale; 0 is plain training."
    ] = 1.0

    moves: ClassVar = False

    def scalars(self) -> dict[str, float]:
        return {"penalty": self.penalty}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        check_classes(problem, "IRM")
        x, state = dense(x), state or ObjectiveState()
        outputs, loss = problem.outputs(x), problem.output_loss
        slopes, p = loss.gradient(outputs, y), outputs.softmax(-1)
        share = torch.full_like(slopes[..., 0], 1.0 / slopes.shape[1]) if state.weight is None else state.weight
        scale = (share * (outputs * slopes).sum(-1)).sum(1, keepdim=True)
        penalty = lane_scalar(state, "penalty", self.penalty, problem.params)[:, None]
        # The derivative of <s, g(s)> is g + H s, with the Hessian H = diag(p) - p p^T of the cross-entropy.
        bent = slopes + p * (outputs - (p * outputs).sum(-1, keepdim=True))
        terms = (Term(x, slopes + (2.0 * penalty * scale)[..., None] * bent),)
        value = loss.value(outputs, y) + penalty * scale.square()
        rest = torch.zeros_like(value)
        return Move(x, y, value, rest, torch.ones_like(rest, dtype=torch.bool), state=state, terms=terms)


trades = maker(Trades)
calibrated = maker(Calibrated)
invariant = maker(Invariant)
