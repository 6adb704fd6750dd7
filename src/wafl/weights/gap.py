"""Client weights that follow how much clients lose when models are averaged: FedDG-GA.

Zhang et al., "Federated domain generalization with generalization adjustment" (CVPR 2023), as in the authors' code,
whose step is a part of an equal share and falls to 0 over the rounds.
"""

from collections.abc import Sequence
from typing import Annotated

from torch import Tensor

from wafl.base.options import EachRound, Range, Tunable, frozen, maker
from wafl.parts.client_weights import LossQuery, Round, uniform_cohort
from wafl.weights.learned import Learned, StepSize

Adjustment = Annotated[
    StepSize,
    EachRound(Range(0, 1, low_open=True)),
    Tunable(),
    "How much the client weights change in the first rounds, in parts of an equal share; in Python, it may be a "
    "function of the round.",
]
"""The option of the rule and of FedDG-GA."""


@frozen
class Gap(Learned):
    """FedDG-GA: clients that the mean of the models serves worse than their own model gain weight.

    The gap of a client is its loss at the server's model less that of the model that it sent in the round before, both
    on all its examples. Then ``lambda_i <- lambda_i + step gap_i / max_j |gap_j|``, cut off at 0 and scaled to sum to
    1, with ``step = step_size (1 - t / T) / m`` in round t of T. A client that did not train in the round before has no
    gap, and keeps its weight up to the scaling.
    """

    step_size: Adjustment = 0.2
    remembers_losses = True
    judges_ends = True
    counts_rounds = True

    def loss_query(self, round: Round) -> LossQuery:
        return LossQuery(uniform_cohort(round), 0)

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        asked = list(clients)
        if round.last_losses is None:
            return weights
        gaps = (losses.to(weights) - round.last_losses.to(weights)[asked]).nan_to_num(0.0)
        largest = float(gaps.abs().max())
        if largest == 0.0:
            return weights
        step = self.step(round.number) * (1.0 - round.number / round.rounds) / len(weights)
        adjusted = weights.clone()
        adjusted[asked] += step / largest * gaps
        adjusted = adjusted.clamp_min(0.0)
        return adjusted / adjusted.sum()


gap = maker(Gap)
