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
from wafl.weights import ClientWeights


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
    """Work asked of clients: to train from ``params``, or to report their loss there.

    ``weights`` is how much each client's reply will count.
    """

    kind: Literal["train", "loss"]
    round: int
    seed: int
    clients: tuple[int, ...]
    weights: Tensor
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
    """What every algorithm is made from; ``lowest_gamma`` is what a learned gamma must not fall below at a point."""

    schedule: Schedule
    adversary: Adversary | None
    num_examples: Sequence[int]
    lowest_gamma: Callable[[Tensor], float]

    def initial_state(self, params: Tensor, client_weights: ClientWeights) -> State:
        scalars = self.adversary.scalars() if self.adversary is not None else {}
        if isinstance(self.adversary, Wasserstein) and self.adversary.radius is not None:
            scalars["gamma"] = max(scalars["gamma"], self.lowest_gamma(params))
        return State(0, params, client_weights.initial(self.num_examples), scalars)

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
        gamma = self.adversary.next_gamma(state.scalars["gamma"], cost)
        return {**state.scalars, "gamma": max(gamma, self.lowest_gamma(params))}


def weighted_mean(weights: Tensor, rows: Tensor) -> Tensor:
    """``sum_i w_i row_i / sum_i w_i``."""
    return (weights / weights.sum()).to(rows) @ rows


def mean_reply(query: Query, values: Tensor) -> float:
    """The mean of one number a client, each counting as its reply does (all alike where none counts)."""
    weights = query.weights if float(query.weights.sum()) > 0 else torch.ones_like(query.weights)
    return float((weights / weights.sum()) @ values.to(weights))
