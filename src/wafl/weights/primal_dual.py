"""Scaff-PD's weights: one proximal step up the extrapolated losses of all clients, before they train.

Yu, Karimireddy, Ma and Jordan, "Scaff-PD: Communication efficient fair and robust federated learning" (2307.13381,
2023). The regularizer of the weights is ``prox/2 ||lambda - 1/m||^2``, a multiple of the paper's chi-squared penalty.
All clients report in every round, as in the paper.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Range, frozen, maker
from wafl.parts.client_weights import Cohort, LossQuery, Round
from wafl.parts.schedule import Schedule
from wafl.weights.learned import Evenness, Learned
from wafl.weights.simplex import project_to_simplex

Extrapolation = Annotated[float, Range(0, 1), "How far the change of the losses since last round is carried on."]
"""The option of the rule and of Scaff-PD."""


@frozen
class PrimalDual(Learned):
    """Scaff-PD's weights: all clients report their losses, the weights climb them, and then the clients train.

    ``lambda <- argmax <s, lambda> - prox/2 ||lambda - 1/m||^2 - 1/(2 step_size) ||lambda - lambda_before||^2``, where
    ``s = loss + extrapolation (loss - loss before)`` holds the losses at the model that is about to be trained.
    """

    prox: Evenness = 0.1
    extrapolation: Extrapolation = 1.0
    asks_everyone = True
    remembers_losses = True

    def check(self, schedule: Schedule, num_clients: int) -> None:
        if schedule.cohort not in (None, num_clients):
            raise ValueError(
                f"Scaff-PD asks all {num_clients} clients each round: leave cohort={schedule.cohort} out; DRFA samples"
            )

    def loss_query(self, round: Round) -> LossQuery:
        return LossQuery(tuple(range(round.num_clients)), 0)

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """The clients that have a weight."""
        clients = tuple(weights.nonzero()[:, 0].tolist())
        return Cohort(clients, weights[list(clients)])

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        asked, losses = list(clients), losses.to(weights)
        before = losses if round.last_losses is None else round.last_losses.to(weights)[asked]
        before = torch.where(before.isnan(), losses, before)
        # Clients that fail to report neither gain nor lose.
        slopes = torch.full_like(weights, float(losses.mean()))
        slopes[asked] = losses + self.extrapolation * (losses - before)
        step = self.step(round.number)
        climbed = weights + step * (slopes + self.prox / len(weights))
        return project_to_simplex(climbed / (1.0 + step * self.prox))


primal_dual = maker(PrimalDual)
