"""What the rules that weigh a cohort by its losses share: it reports these first, and then those that count train."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import documented
from wafl.parts.client_weights import ClientWeights, Cohort, LossQuery, Round, uniform_cohort
from wafl.weights.fixed import ByExamples

BY_EXAMPLES = ByExamples()


@documented
@dataclass(frozen=True, kw_only=True)
class Reweighted(ClientWeights):
    """A base for rules whose weights are a function of the cohort's losses, around the weights of ``center``."""

    center: Annotated[
        ClientWeights, "The client weights before losses count (wafl.weights); by default shares of the examples."
    ] = BY_EXAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.center, ClientWeights) or self.center.learns:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"center={self.center!r} must be weights that do not change: wafl.weights.by_examples(), uniform(), "
                "fixed([...]), or a rule of your own without losses"
            )

    @abstractmethod
    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """The weights of clients with these losses; their positive weights in the center sum to 1."""

    def initial(self, num_examples: Sequence[int]) -> Tensor:
        return self.center.initial(num_examples)

    def enlarged(self, weights: Tensor, num_examples: Sequence[int]) -> Tensor:
        return self.center.enlarged(weights, num_examples)

    @property
    def closed(self) -> bool:
        return self.center.closed

    def needs_sizes(self, local_steps: int | None) -> bool:
        return self.center.needs_sizes(local_steps)

    def loss_query(self, round: Round) -> LossQuery:
        return LossQuery(uniform_cohort(round), 0)

    def draw(self, weights: Tensor, round: Round) -> Cohort:
        """Those of the cohort that have a weight; all of them if none has, and then nothing changes."""
        cohort = uniform_cohort(round)
        clients = tuple(client for client in cohort if float(weights[client]) > 0) or cohort
        return Cohort(clients, weights[list(clients)])

    def learn(self, weights: Tensor, clients: Sequence[int], losses: Tensor, round: Round) -> Tensor:
        center = self.center.initial(round.num_examples)[list(clients)]
        counts = center > 0
        chosen = torch.tensor(list(clients))[counts]
        learned = torch.zeros_like(weights)
        if len(chosen):
            learned[chosen] = self.weigh(center[counts] / center.sum(), losses.to(weights)[counts])
        return learned
