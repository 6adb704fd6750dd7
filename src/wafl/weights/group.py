"""GroupDRO with clients as groups: the worst mixture of the clients, by multiplicative steps.

Sagawa, Koh, Hashimoto and Liang, "Distributionally robust neural networks for group shifts" (ICLR 2020), algorithm 1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from wafl.base.options import frozen, maker
from wafl.parts.client_weights import Round
from wafl.weights.learned import Climb, Learned


@frozen
class Group(Learned):
    """GroupDRO over clients: weights that grow exponentially with the losses met so far.

    ``lambda_i <- lambda_i exp(step_size loss_i)`` for the clients that were asked, then all weights are scaled to sum
    to 1. The losses come with the updates, as those of the paper come with its batches. A client that was not asked
    keeps its weight, up to the scaling.
    """

    step_size: Climb = 0.01

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        powers = weights.log()
        powers[list(clients)] += self.step(round.number) * losses.to(powers)
        return torch.softmax(powers, 0)


group_dro = maker(Group)
