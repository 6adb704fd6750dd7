"""GroupDRO with clients as groups: the worst mixture of the clients, by multiplicative steps.

Sagawa, Koh, Hashimoto and Liang, "Distributionally robust neural networks for group shifts" (ICLR 2020), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.parts.client_weights import Round
from wafl.weights.learned import Climb, Learned, StepSize


@dataclass(frozen=True)
class Group(Learned):
    """``lambda_i <- lambda_i exp(step_size loss_i)`` for the clients that were asked, then scaled to sum to 1.

    The losses come with the updates, as those of the paper come with its batches. A client that was not asked keeps its
    weight, up to the scaling.

    Args:
        step_size: how fast the weights climb, a number or a function of the round.
    """

    step_size: Climb = 0.01

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        powers = weights.log()
        powers[list(clients)] += self.step(round.number) * losses.to(powers)
        return torch.softmax(powers, 0)


def group_dro(step_size: StepSize = 0.01) -> Group:
    """GroupDRO over clients: weights that grow exponentially with the losses met so far.

    Args:
        step_size: how fast the weights climb, a number or a function of the round.
    """
    return Group(step_size)
