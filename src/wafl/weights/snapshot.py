"""DRFA: the worst mixture of the clients, with local steps.

Deng, Kamani and Mahdavi, "Distributionally robust federated averaging" (NeurIPS 2020). A round asks twice: a cohort
drawn by lambda trains and keeps a snapshot at a common random step; then a uniform cohort reports its loss at the mean
of the snapshots. With ``prox`` it is the paper's DRFA-Prox, with the regularizer ``-prox/2 ||lambda - 1/m||^2``.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from wafl.base.options import frozen, maker
from wafl.base.random import Key, Purpose, bits, uniform
from wafl.parts.client_weights import Cohort, LossQuery, Round, uniform_cohort
from wafl.weights.learned import Climb, Evenness, Learned
from wafl.weights.simplex import project_in_place


@frozen
class Snapshot(Learned):
    """DRFA: like AFL, but from the losses of a random subset U of the clients at a random snapshot of the round.

    ``lambda <- projection(lambda + K step_size v)``, with v the losses at the snapshot, scaled by ``m / |U|``.
    With ``prox`` the weights maximize ``sum_i lambda_i loss_i - prox/2 ||lambda - 1/m||^2``: the step ends with the
    proximal operator of the penalty.
    """

    step_size: Climb = 0.01
    prox: Evenness = 0.0

    def needs_sizes(self, local_steps: int | None) -> bool:
        return local_steps is None  # K is then the number of steps of the largest client

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """Clients drawn by lambda with replacement; one that is drawn twice counts twice."""
        draws = uniform(Key.of(round.seed, round.number), Purpose.COHORT, round.cohort)
        drawn = torch.searchsorted(weights.cumsum(0), draws, right=True)
        times = sorted(Counter(drawn.clamp_max(len(weights) - 1).tolist()).items())
        return Cohort(
            tuple(client for client, _ in times),
            torch.tensor([float(count) for _, count in times], dtype=torch.float64),
        )

    def loss_query(self, round: Round) -> LossQuery:
        step = int(bits(Key.of(round.seed, round.number), Purpose.SNAPSHOT, 1)) % round.local_steps + 1
        return LossQuery(uniform_cohort(round, Purpose.LOSS_COHORT), step)

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        climbed = weights.clone()
        step = round.local_steps * self.step(round.number)
        climbed[list(clients)] += step * (len(climbed) / len(clients)) * losses.to(climbed)
        if self.prox:
            price = step * self.prox
            climbed.add_(price / len(climbed)).div_(1.0 + price)
        return project_in_place(climbed)


snapshot = maker(Snapshot)
