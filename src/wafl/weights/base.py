"""What a rule for the client weights lambda is: implement one of these protocols to write your own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from wafl.core.feistel import first
from wafl.core.random import Purpose
from wafl.schedule import Schedule


@runtime_checkable
class ClientWeights(Protocol):
    """A rule that gives each client a weight; see also the optional method that :func:`needs_sizes` asks for."""

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """The weights before the first round.

        Args:
            num_examples: the number of examples of each client; 0 if the server does not know it.

        Returns:
            One weight per client, in double precision, summing to 1.
        """
        ...

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """The weights after clients have joined.

        Args:
            weights: the weights so far.
            num_examples: the number of examples of every client; those of the new clients come last.
        """
        ...


@dataclass(frozen=True)
class Round:
    """What a learned rule knows about a round.

    Args:
        number: the round, counted from 0.
        seed: the seed of the run.
        num_clients: the number of all clients.
        cohort: the number of clients that the schedule asks for.
        local_steps: K, the most local steps that any client takes.
        num_examples: the number of examples of each client; 0 if the server does not know it.
        last_losses: what each client reported in the round before, for a rule whose ``remembers_losses`` is True; NaN
            for a client that did not report.
    """

    number: int
    seed: int
    num_clients: int
    cohort: int
    local_steps: int
    num_examples: Sequence[int] = ()
    last_losses: Tensor | None = None


@dataclass(frozen=True)
class Cohort:
    """Who trains in a round.

    Args:
        clients: the clients, in ascending order.
        weights: how much each of them counts in the mean; only the ratios matter.
    """

    clients: tuple[int, ...]
    weights: Tensor


@dataclass(frozen=True)
class LossQuery:
    """Who reports a loss in a round, and where.

    Args:
        clients: the clients to ask.
        step: they report at the mean of the cohort's iterates after this many local steps, once the cohort has trained.
            With 0 they report at the model of the server, before anybody trains: the weights of the round then follow
            from the losses, and :meth:`LearnedWeights.draw` is given these.
    """

    clients: tuple[int, ...]
    step: int


@runtime_checkable
class LearnedWeights(ClientWeights, Protocol):
    """A rule whose weights change with the losses that clients report."""

    def check(self, schedule: Schedule, num_clients: int) -> None:
        """Raise an error if the rule cannot work with this schedule."""
        ...

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """The clients that train in a round, given the current weights of all clients."""
        ...

    def loss_query(self, round: Round) -> LossQuery | None:
        """The query for losses; None for a rule that learns from the losses that come with the updates."""
        ...

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """The next weights.

        Args:
            weights: the current weights of all clients.
            clients: the clients that reported.
            losses: one loss for each of them.
            round: the round they were asked in.
        """
        ...


@runtime_checkable
class Damped(Protocol):
    """A rule that asks for losses before a round trains, and shortens the server's step by what became of them."""

    def damping(self, weights: Tensor, losses: Tensor, squared_lengths: Tensor, rate: float) -> float:
        """The share of the server's step that is taken, in (0, 1].

        Args:
            weights: how much each reply counts; they sum to 1.
            losses: what each of these clients reported before it trained.
            squared_lengths: the squared length of each client's update.
            rate: the learning rate of the clients.
        """
        ...


def uniform_cohort(round: Round, purpose: Purpose = Purpose.COHORT) -> tuple[int, ...]:
    """As many clients as the schedule asks for, drawn uniformly without replacement, in ascending order.

    They are the first of one random order, so a smaller cohort lies in a larger one.
    """
    if round.cohort == round.num_clients:
        return tuple(range(round.num_clients))
    return _drawn(round.seed, purpose, round.num_clients, round.cohort, round.number)


@lru_cache(maxsize=2)  # a round asks for its cohorts more than once
def _drawn(seed: int, purpose: Purpose, num_clients: int, cohort: int, number: int) -> tuple[int, ...]:
    return tuple(sorted(first(seed, purpose, num_clients, cohort, number)))


def needs_sizes(rule: ClientWeights, local_steps: int | None) -> bool:
    """Whether a server must know how many examples each client has.

    A rule may define ``needs_sizes(local_steps)`` to answer for itself; one that does not is told the sizes.
    """
    own = getattr(rule, "needs_sizes", None)
    return True if own is None else bool(own(local_steps))


def asks_everyone(rule: ClientWeights) -> bool:
    """Whether a rule refuses a cohort that is not everyone: its class says so with ``asks_everyone = True``."""
    return bool(getattr(rule, "asks_everyone", False))


def normalized(values: Sequence[float]) -> Tensor:
    """Weights in double precision that sum to 1."""
    weights = torch.tensor(values, dtype=torch.float64)
    weights = weights / weights.max()  # otherwise the sum of huge weights would overflow
    return weights / weights.sum()
