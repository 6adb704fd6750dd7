"""Define rules for the client weights lambda; derive from :class:`ClientWeights` to write your own."""

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
    """The facts about a round that a rule can use."""

    number: Annotated[int, "The round, counted from 0."]
    seed: Annotated[int, "The seed of the run."]
    num_clients: Annotated[int, "The number of all clients."]
    cohort: Annotated[int, "The number of clients per round in the schedule."]
    local_steps: Annotated[int, "The maximum number of local steps of any client, the paper's K."]
    num_examples: Annotated[
        Sequence[int], "The number of examples of each client; 0 if the server does not know it."
    ] = ()
    last_losses: Annotated[
        Tensor | None,
        "Each client's loss in the previous round, for a rule whose ``remembers_losses`` is True; NaN for a "
        "client that did not report.",
    ] = None
    rounds: Annotated[int, "The number of all rounds."] = 1


@record
class Cohort:
    """The clients that train in a round."""

    clients: Annotated[tuple[int, ...], "The clients, in ascending order."]
    weights: Annotated[Tensor, "The weight of each client in the mean; only ratios matter."]


@frozen
class LossQuery:
    """The clients that report a loss in a round, and the step at which they compute it."""

    clients: Annotated[tuple[int, ...], "The clients to ask."]
    step: Annotated[
        int,
        "They report at the mean of the cohort's iterates after this many local steps, once the cohort has "
        "trained. With 0 they report at the model of the server, before any client trains: the weights of the round "
        "then follow from the losses, and :meth:`ClientWeights.draw` is given these.",
    ]


class ClientWeights(Part, ABC):
    """A rule that gives each client a weight: write :meth:`initial`, and :meth:`learn` if it learns."""

    slot = "client_weights"
    asks_everyone: ClassVar[bool] = False
    """Whether the cohort must contain all clients."""
    takes_one_step: ClassVar[bool] = False
    """Whether a round must have a single local step."""
    remembers_losses: ClassVar[bool] = False
    """Whether :meth:`learn` receives the losses of the previous round."""
    judges_ends: ClassVar[bool] = False
    """If True, clients report the loss of their *trained* model on all their examples, for the next round.

    Otherwise, they report the loss before training.
    """
    counts_rounds: ClassVar[bool] = False
    """Whether :meth:`learn` depends on the total number of rounds, so that none can be added later."""
    equal: ClassVar[bool] = False
    """Whether all clients always have the same weight."""
    climbs: ClassVar[bool] = False
    """Whether the rule has a ``step_size``."""

    @abstractmethod
    def initial(self, num_examples: Sequence[int]) -> Tensor:
        """Return the weights before the first round, one per client: float64, summing to 1.

        A size may be 0, which means unknown.
        """

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        """Return the weights after the last of these clients have joined.

        By default, these are the weights as if the clients had been there from the start.
        """
        return self.initial(num_examples)

    @property
    def closed(self) -> bool:
        """Whether the rule is for the first clients only, so that no other client may join."""
        return False

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return whether a server must know the clients' sizes; ``local_steps`` is None for epochs."""
        return True

    def check(self, schedule: Schedule, num_clients: int) -> None:
        """Raise an error if the rule cannot work with this schedule."""

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """Return the clients that train in a round, given all current weights; by default drawn uniformly."""
        clients = uniform_cohort(round)
        return Cohort(clients, weights[list(clients)])

    def loss_query(self, round: Round) -> LossQuery | None:
        """Return the separate query for losses.

        None if the rule needs no losses, or only the losses that come with models.
        """
        return None

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        """Return the next weights; by default, the current weights.

        Args:
            weights: the current weights of all clients.
            clients: the clients that reported.
            losses: the loss of each of these clients.
            round: the round of the query.
        """
        return weights

    def damping(self, weights: Tensor, losses: Tensor, squared_lengths: Tensor, rate: float) -> float:
        """Return the fraction of the server's step to take, in (0, 1], for a rule that requests losses before training.

        Args:
            weights: the weights of the replies, which sum to 1.
            losses: the losses that these clients reported before training.
            squared_lengths: the squared length of each client's update.
            rate: the learning rate of the clients.
        """
        return 1.0

    @property
    def learns(self) -> bool:
        """Whether the weights change with the losses, that is, whether the rule overrides :meth:`learn`."""
        return type(self).learn is not ClientWeights.learn

    @property
    def damps(self) -> bool:
        """Whether the rule shortens the server's step, that is, whether it overrides :meth:`damping`."""
        return type(self).damping is not ClientWeights.damping

    @property
    def asks_losses(self) -> bool:
        """Whether the rule may send a separate query for losses."""
        return type(self).loss_query is not ClientWeights.loss_query

    @property
    def asks_first(self) -> bool:
        """Whether the rule requests losses before a round trains."""
        query = self.loss_query(Round(0, 0, 1, 1, 1))
        return query is not None and query.step == 0


def uniform_cohort(round: Round, purpose: Purpose = Purpose.COHORT) -> tuple[int, ...]:
    """Draw a round's clients uniformly without replacement, in order; a smaller cohort is part of a larger one."""
    if round.cohort == round.num_clients:
        return tuple(range(round.num_clients))
    return _drawn(round.seed, purpose, round.num_clients, round.cohort, round.number)


@lru_cache(maxsize=2)  # a round asks for its cohorts more than once
def _drawn(seed: int, purpose: Purpose, num_clients: int, cohort: int, number: int) -> tuple[int, ...]:
    return tuple(sorted(first(seed, purpose, num_clients, cohort, number)))


def normalized(values: Sequence[float]) -> Tensor:
    """Return the weights in double precision, scaled to sum to 1."""
    weights = torch.tensor(values, dtype=torch.float64)
    weights = weights / weights.max()  # otherwise the sum of huge weights would overflow
    return weights / weights.sum()
