"""Client weights that climb the clients' losses: AFL, GroupDRO, and what such rules share.

AFL: Mohri, Sivek and Suresh, "Agnostic federated learning" (ICML 2019), stochastic AFL: every client takes one step
from the same parameters and reports its loss there; the model descends the weighted loss, and the weights ascend it.
GroupDRO: Sagawa, Koh, Hashimoto and Liang, "Distributionally robust neural networks for group shifts" (ICLR 2020),
algorithm 1, with clients as groups.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.checks import in_round
from wafl.base.options import EachRound, NotNegative, Positive, Tunable, frozen, maker
from wafl.parts.client_weights import ClientWeights, Round, normalized
from wafl.parts.schedule import Schedule
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


@frozen
class Agnostic(Learned):
    """AFL: every client reports its loss each round, and ``lambda <- projection(lambda + step_size loss)``."""

    asks_everyone = True
    takes_one_step = True

    def check(self, schedule: Schedule, num_clients: int) -> None:
        if schedule.local_steps != 1:
            raise ValueError(
                f"AFL's clients take exactly one step per round: pass local_steps=1 instead of local_epochs="
                f"{schedule.local_epochs}, local_steps={schedule.local_steps}; DRFA is AFL with local steps"
            )
        if schedule.cohort not in (None, num_clients):
            raise ValueError(
                f"AFL asks all {num_clients} clients each round: leave cohort={schedule.cohort} out; DRFA samples"
            )


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


agnostic = maker(Agnostic)
group_dro = maker(Group)
