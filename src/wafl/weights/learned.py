"""What the rules that climb the clients' losses share: a step size and the projection onto the simplex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wafl.core.checks import check_positive
from wafl.core.options import EachRound, NotNegative, Positive, Tunable, check_options
from wafl.schedule import Schedule
from wafl.weights.base import Cohort, LossQuery, Round, normalized, uniform_cohort

StepSize = float | Callable[[int], float]
Climb = Annotated[StepSize, EachRound(Positive()), Tunable(30.0), "How fast the client weights climb the losses."]
"""The option of rules and presets that climb the losses."""
Evenness = Annotated[float, NotNegative, "The price of client weights that differ from equal ones; 0 has none."]
"""The option of those that keep the weights near equal ones."""


@dataclass(frozen=True)
class Learned:
    """A base for rules that learn: ``lambda <- projection(lambda + step_size loss)``, starting from equal weights.

    By default the cohort is drawn uniformly, and the losses come with the updates. Override what differs.

    Args:
        step_size: how fast the weights climb, a number or a function of the round.
    """

    step_size: Climb = 0.1

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
        return project_in_place(climbed)

    def step(self, round: int) -> float:
        """The step size of a round."""
        if not callable(self.step_size):
            return self.step_size
        step = self.step_size(round)
        check_positive(f"round {round}: weights_step", step)
        return step


def project_to_simplex(values: Tensor) -> Tensor:
    """The nearest point of the probability simplex.

    By Michelot, "A finite algorithm for finding the projection of a point onto the canonical simplex of R^n" (Journal
    of Optimization Theory and Applications, 1986), which needs no sorting: a few looks at each of a million numbers.

    Args:
        values: any vector.

    >>> project_to_simplex(torch.tensor([0.9, 0.5]))
    tensor([0.7000, 0.3000])
    """
    return project_in_place(values.clone())


def project_in_place(values: Tensor) -> Tensor:
    """The same, written over the values."""
    values -= values.max()  # changes no projection, and keeps large values exact
    staying = _above(values, -1.0)  # what stays is less than 1 below the largest
    while True:
        threshold = float(staying.sum() - 1.0) / len(staying)
        fewer = _above(staying, threshold)
        if len(fewer) == len(staying):
            return values.sub_(threshold).clamp_min_(0.0)
        staying = fewer


def _above(values: Tensor, threshold: float) -> Tensor:
    return values if float(values.min()) > threshold else values[values > threshold]
