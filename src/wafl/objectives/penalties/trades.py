"""TRADES: accuracy on the examples as they are, and outputs that hardly change in a ball around them.

Zhang et al., "Theoretically principled trade-off between robustness and accuracy" (ICML 2019).
"""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import NotNegative, Tunable, frozen, maker, part
from wafl.objectives.attacked.projected import ProjectedAscent
from wafl.objectives.base import Move, ObjectiveState, Term, lane_scalar
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


trades = maker(Trades)
