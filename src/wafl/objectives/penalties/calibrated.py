"""CalFAT: adversarial training that corrects for which classes a client has.

Chen et al., "CalFAT: Calibrated federated adversarial training with label skewness" (NeurIPS 2022).
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from wafl.base.options import frozen, maker
from wafl.objectives.attacked.projected import ProjectedAscent
from wafl.objectives.base import Move, ObjectiveState, Term
from wafl.objectives.penalties.trades import check_classes, within_ball
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem


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
    """The logarithms of the clients' shares of the classes ``[L, 1, C]``; 0 if nobody counted.

    The share of a class that a client does not have counts as 1e-8.
    """
    counts = None if state is None else state.label_counts
    if counts is None:
        return outputs.new_zeros(1)
    counts = pad(counts.to(outputs), (0, outputs.shape[-1] - counts.shape[-1]))
    return (counts / counts.sum(-1, keepdim=True)).clamp_min(1e-8).log()[:, None]


calibrated = maker(Calibrated)
