"""What a rule for the client weights lambda is: derive from :class:`ClientWeights` to write your own."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from wafl.base.options import Part, frozen, record
from wafl.base.random import Purpose
from wafl.parts.feistel import first
from wafl.parts.schedule import Schedule


@record
class Round:
    """What a rule knows about a round."""

    number: Annotated[int, "The round, counted from 0."]
    seed: Annotated[int, "The seed of the run."]
    num_clients: Annotated[int, "The number of all clients."]
    cohort: Annotated[int, "The number of clients that the schedule asks for."]
    local_steps: Annotated[int, "The most local steps that any client takes, the paper's K."]
    num_examples: Annotated[
        Sequence[int], "The number of examples of each client; 0 if the server does not know it."
    ] = ()
    last_losses: Annotated[
        Tensor | None,
        "What each client reported in the round before, for a rule whose ``remembers_losses`` is True; NaN for a "
        "client that did not report.",
    ] = None
    rounds: Annotated[int, "The number of all rounds."] = 1


@record
class Cohort:
    """Who trains in a round."""

    clients: Annotated[tuple[int, ...], "The clients, in ascending order."]
    weights: Annotated[Tensor, "How much each of them counts in the mean; only the ratios matter."]


@frozen
class LossQuery:
    """Who reports a loss in a round, and where."""

    clients: Annotated[tuple[int, ...], "The clients to ask."]
    step: Annotated[
        int,
        "They report at the mean of the cohort's iterates after this many local steps, once the cohort has "
        "trained. With 0 they report at the model of the server, before anybody trains: the weights of the round "
        "then follow from the losses, and :meth:`ClientWeights.draw` is given these.",
    ]


class ClientWeights(Part, ABC):
    """A rule that gives each client a weight: write :meth:`initial`, :meth:`learn` if it learns, and what differs."""

    slot = "client_weights"
    asks_everyone: ClassVar[bool] = False
    """Whether it refuses a cohort that is not everyone."""
    takes_one_step: ClassVar[bool] = False
    """Whether it refuses more than one local step per round."""
    remembers_losses: ClassVar[bool] = False
    """Whether :meth:`learn` is given the losses of the round before."""
    judges_ends: ClassVar[bool] = False
    """Whether what clients send with their model is its loss on all their examples, and not that of their start; these
    are the losses that the next round remembers.
    """
    counts_rounds: ClassVar[bool] = False
    """Whether :meth:`learn` depends on the number of all rounds, so that none can be added later."""
    equal: ClassVar[bool] = False
    """Whether all clients always count the same."""
    climbs: ClassVar[bool] = False
    """Whether it has a ``step_size``."""

    @abstractmethod
    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """The weights before the first round, one per client: float64, summing to 1; a size may be 0, unknown."""

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """The weights once the last of these clients have joined; by default as if they had always been there."""
        return self.initial(num_examples)

    @property
    def closed(self) -> bool:
        """Whether it is about the clients of the start alone, so that no other may join."""
        return False

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Whether a server must know how many examples each client has; ``local_steps`` is None for epochs."""
        return True

    def check(self, schedule: Schedule, num_clients: int) -> None:
        """Raise an error if the rule cannot work with this schedule."""

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """The clients that train in a round, given the current weights of all clients; by default drawn uniformly."""
        clients = uniform_cohort(round)
        return Cohort(clients, weights[list(clients)])

    def loss_query(self, round: Round) -> LossQuery | None:
        """Who reports a loss in a query of its own; None for a rule that needs none, or those that come with models."""
        return None

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """The next weights; by default the same.

        Args:
            weights: the current weights of all clients.
            clients: the clients that reported.
            losses: one loss for each of them.
            round: the round they were asked in.
        """
        return weights

    def damping(self, weights: Tensor, losses: Tensor, squared_lengths: Tensor, rate: float) -> float:
        """The share of the server's step that is taken, in (0, 1], by a rule that asks for losses before training.

        Args:
            weights: how much each reply counts; they sum to 1.
            losses: what each of these clients reported before it trained.
            squared_lengths: the squared length of each client's update.
            rate: the learning rate of the clients.
        """
        return 1.0

    @property
    def learns(self) -> bool:
        """Whether its weights change with the losses: whether it has a :meth:`learn` of its own."""
        return type(self).learn is not ClientWeights.learn

    @property
    def damps(self) -> bool:
        """Whether it shortens the server's step: whether it has a :meth:`damping` of its own."""
        return type(self).damping is not ClientWeights.damping

    @property
    def asks_losses(self) -> bool:
        """Whether it may ask for losses in a query of their own."""
        return type(self).loss_query is not ClientWeights.loss_query

    @property
    def asks_first(self) -> bool:
        """Whether it asks for losses before a round trains."""
        query = self.loss_query(Round(0, 0, 1, 1, 1))
        return query is not None and query.step == 0


def uniform_cohort(round: Round, purpose: Purpose = Purpose.COHORT) -> tuple[int, ...]:
    """The clients of a round, drawn uniformly without replacement, ascending; a smaller cohort lies in a larger one."""
    if round.cohort == round.num_clients:
        return tuple(range(round.num_clients))
    return _drawn(round.seed, purpose, round.num_clients, round.cohort, round.number)


@lru_cache(maxsize=2)  # a round asks for its cohorts more than once
def _drawn(seed: int, purpose: Purpose, num_clients: int, cohort: int, number: int) -> tuple[int, ...]:
    return tuple(sorted(first(seed, purpose, num_clients, cohort, number)))


def normalized(values: Sequence[float]) -> Tensor:
    """Weights in double precision that sum to 1."""
    weights = torch.tensor(values, dtype=torch.float64)
    weights = weights / weights.max()  # otherwise the sum of huge weights would overflow
    return weights / weights.sum()
