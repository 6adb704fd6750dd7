"""IRM with clients as environments: the outputs must be right at the same scale for every client.

Arjovsky et al., "Invariant risk minimization" (2019), IRMv1. It moves no example; it adds a penalty to the loss.
"""

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from wafl.base.options import NotNegative, Tunable, frozen, maker
from wafl.objectives.base import Move, Objective, ObjectiveState, Term, lane_scalar
from wafl.objectives.penalties.trades import check_classes
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem


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


invariant = maker(Invariant)
