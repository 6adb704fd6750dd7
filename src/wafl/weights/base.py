"""What a rule for the client weights lambda is; write your own by implementing one of these protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from wafl.core.random import Purpose, choose
from wafl.schedule import Schedule


@runtime_checkable
class ClientWeights(Protocol):
    """One weight per client."""

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """The weights before the first round, in double precision, summing to 1."""
        ...

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """The weights after clients have joined; they come after the others."""
        ...


@dataclass(frozen=True)
class Round:
    """What a learned rule knows of a round.

    ``cohort`` is how many clients the schedule asks for; ``local_steps`` is K, the most local steps of any client.
    """

    number: int
    seed: int
    num_clients: int
    cohort: int
    local_steps: int


@dataclass(frozen=True)
class Cohort:
    """The clients that train, in ascending order, and how much each counts."""

    clients: tuple[int, ...]
    weights: Tensor


@dataclass(frozen=True)
class LossQuery:
    """Which clients report their loss after the training, at the mean of the iterates after ``step`` local steps."""

    clients: tuple[int, ...]
    step: int


@runtime_checkable
class LearnedWeights(ClientWeights, Protocol):
    """Weights that change with what clients report."""

    def check(self, schedule: Schedule, num_clients: int) -> None:
        """Refuse a schedule that the rule cannot work with."""
        ...

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """The clients that train in a round."""
        ...

    def loss_query(self, round: Round) -> LossQuery | None:
        """A second question of the round; None for a rule that learns from the losses that come with the updates."""
        ...

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """The next weights, from the losses that these clients reported."""
        ...


def uniform_cohort(round: Round) -> tuple[int, ...]:
    """As many clients as the schedule asks for, drawn without replacement."""
    return tuple(choose(round.seed, Purpose.COHORT, round.num_clients, round.cohort, round.number))


def needs_sizes(rule: ClientWeights, local_steps: int | None) -> bool:
    """Whether a server must know how many examples each client has; a rule of your own may say so itself."""
    own = getattr(rule, "needs_sizes", None)
    return True if own is None else bool(own(local_steps))


def normalized(values: Sequence[float]) -> Tensor:
    """Weights in double precision that sum to 1."""
    weights = torch.tensor(values, dtype=torch.float64)
    weights = weights / weights.max()  # or the sum of huge weights would overflow
    return weights / weights.sum()
