"""What the rules that climb the clients' losses share: a step size, and a step that ends in the simplex."""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.checks import in_round
from wafl.base.options import EachRound, NotNegative, Positive, Tunable, frozen
from wafl.parts.client_weights import ClientWeights, Round, normalized
from wafl.weights.simplex import project_in_place

StepSize = float | Callable[[int], float]
Climb = Annotated[
    StepSize,
    EachRound(Positive()),
    Tunable(30.0),
    "How fast the client weights climb the losses; in Python, it may be a function of the round.",
]
"""The option of rules and presets that climb the losses."""
Evenness = Annotated[float, NotNegative, "The price of client weights that differ from equal ones; 0 has none."]
"""The option of those that keep the weights near equal ones."""


@frozen
class Learned(ClientWeights):
    """A base for rules that learn: ``lambda <- projection(lambda + step_size loss)``, starting from equal weights.

    By default the cohort is drawn uniformly, and the losses come with the updates. Override what differs.
    """

    step_size: Climb = 0.1
    climbs = True

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        return normalized([1.0] * len(num_examples))

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """New clients start with an equal share; the others split the rest as before."""
        fresh = weights.new_full((len(num_examples) - len(weights),), 1.0 / len(num_examples))
        return torch.cat([weights * (1.0 - float(fresh.sum())), fresh])

    def needs_sizes(self, local_steps: int | None) -> bool:
        return False

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        climbed = weights.clone()
        climbed[list(clients)] += self.step(round.number) * losses.to(climbed)
        return project_in_place(climbed)

    def step(self, round: int) -> float:
        """The step size of a round."""
        return in_round("weights_step", self.step_size, round)
