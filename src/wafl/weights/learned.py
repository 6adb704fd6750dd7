"""What the rules that climb the clients' losses share: a step size and the projection onto the simplex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wafl.core.checks import check_positive
from wafl.core.options import EachRound, Positive, Tunable, check_options
from wafl.schedule import Schedule
from wafl.weights.base import Cohort, LossQuery, Round, normalized, uniform_cohort

StepSize = float | Callable[[int], float]


@dataclass(frozen=True)
class Learned:
    """A base for rules that learn: ``lambda <- projection(lambda + step_size loss)``, starting from equal weights.

    By default the cohort is drawn uniformly, and the losses come with the updates. Override what differs.

    Args:
        step_size: how fast the weights climb, a number or a function of the round.
    """

    step_size: Annotated[StepSize, EachRound(Positive()), Tunable(30.0)] = 0.1

    def __post_init__(self) -> None:
        check_options(self)

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        return normalized([1.0] * len(num_examples))

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """New clients start with an equal share; the others split the rest as before."""
        fresh = weights.new_full((len(num_examples) - len(weights),), 1.0 / len(num_examples))
        return torch.cat([weights * (1.0 - float(fresh.sum())), fresh])

    def needs_sizes(self, local_steps: int | None) -> bool:
        return False

    def check(self, schedule: Schedule, num_clients: int) -> None:
        """Any schedule is fine."""

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        clients = uniform_cohort(round)
        return Cohort(clients, weights[list(clients)])

    def loss_query(self, round: Round) -> LossQuery | None:
        return None

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        climbed = weights.clone()
        climbed[list(clients)] += self.step(round.number) * losses.to(climbed)
        return project_to_simplex(climbed)

    def step(self, round: int) -> float:
        """The step size of a round."""
        if not callable(self.step_size):
            return self.step_size
        step = self.step_size(round)
        check_positive(f"round {round}: weights_step", step)
        return step


def project_to_simplex(values: Tensor) -> Tensor:
    """The nearest point of the probability simplex (Duchi et al., ICML 2008).

    Args:
        values: any vector.

    >>> project_to_simplex(torch.tensor([0.9, 0.5]))
    tensor([0.7000, 0.3000])
    """
    values = values - values.max()  # changes no projection, and keeps large values exact
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1.0) / torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    threshold = excess[int((ordered > excess).sum()) - 1]
    return (values - threshold).clamp_min(0.0)
