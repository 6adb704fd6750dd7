"""An algorithm asks for client work and is told the replies; it never knows where clients live.

state = algorithm.init(params)
while (query := algorithm.ask(state)) is not None:
    state = algorithm.tell(state, query, engine.run(query))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from wafl.adversaries import Adversary, Wasserstein
from wafl.schedule import Schedule


@dataclass(frozen=True)
class State:
    """All that a server remembers between queries: plain data, so a checkpoint is the state."""

    round: int
    params: Tensor
    client_weights: Tensor
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])
    snapshot: Tensor | None = None


@dataclass(frozen=True)
class Query:
    """Work asked of clients: to train from ``params``, or to report their loss there."""

    kind: Literal["train", "loss"]
    round: int
    seed: int
    clients: tuple[int, ...]
    params: Tensor
    scalars: Mapping[str, float]
    snapshot_step: int | None = None


@dataclass(frozen=True)
class Replies:
    """One row a client, in the order of ``clients``.

    ``loss`` and ``cost`` are means over the client's first batch (to train) or all its examples (to report):
    of what it minimises, at the parameters it was sent, and of the transport cost its adversary paid.
    """

    clients: tuple[int, ...]
    loss: Tensor
    cost: Tensor
    params: Tensor | None = None
    snapshots: Tensor | None = None


class Algorithm(Protocol):
    """Server logic; ``ask`` returns None when the last round is done."""

    def init(self, params: Tensor) -> State: ...
    def ask(self, state: State) -> Query | None: ...
    def tell(self, state: State, query: Query, replies: Replies) -> State: ...


@dataclass(frozen=True)
class Setting:
    """What every algorithm is made from; ``limit`` is the concavity limit for gamma at given parameters."""

    schedule: Schedule
    adversary: Adversary | None
    num_examples: Sequence[int]
    limit: Callable[[Tensor], float | None]

    def initial_scalars(self) -> dict[str, float]:
        return self.adversary.scalars() if self.adversary is not None else {}

    def query_scalars(self, state: State) -> dict[str, float]:
        schedule = self.schedule
        return {
            **state.scalars,
            "learning_rate": schedule.rate(state.round),
            "momentum": schedule.momentum,
            "weight_decay": schedule.weight_decay,
        }

    def server_step(self, params: Tensor, mean: Tensor) -> Tensor:
        rate = self.schedule.server_learning_rate
        return mean if rate == 1.0 else params + rate * (mean - params)

    def next_scalars(self, state: State, params: Tensor, cost: float) -> Mapping[str, float]:
        """The adversary's scalars for the next round: a gamma that is found from a radius moves by the dual."""
        if not isinstance(self.adversary, Wasserstein) or self.adversary.radius is None:
            return state.scalars
        gamma = self.adversary.next_gamma(state.scalars["gamma"], cost, state.round)
        limit = self.limit(params)
        if self.adversary.strict and limit is not None:
            gamma = max(gamma, limit)
        return {**state.scalars, "gamma": gamma}


def weighted_mean(weights: Tensor, rows: Tensor) -> Tensor:
    """``sum_i w_i row_i / sum_i w_i``."""
    return (weights / weights.sum()).to(rows) @ rows


def mean_cost(weights: Tensor, replies: Replies) -> float:
    """The cohort's mean transport cost, clients weighted as in the ball's center."""
    total = weights.sum()
    weights = weights / total if float(total) > 0 else torch.full_like(weights, 1.0 / len(weights))
    return float(weights @ replies.cost.to(weights))
