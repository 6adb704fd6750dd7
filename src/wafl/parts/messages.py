"""Define the messages between server and clients, and the server's state: plain data with named vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

from wafl.base.options import record

PARAMS = "params"
"""The vector that every client sends after training: its trained parameters."""
GRADIENT = "gradient"
"""A vector that clients may send with a loss before training: the gradient on all their examples."""
Vectors = Mapping[str, Tensor]
"""Vectors of the same length as the parameters, by name."""


@record
class State:
    """The server's whole state between queries; it is plain data, so a checkpoint is the state."""

    round: Annotated[int, "The round that comes next, or is under way."]
    params: Annotated[Tensor, "The model, one vector ``[P]``."]
    client_weights: Annotated[Tensor, "Lambda, one weight per client."]
    scalars: Annotated[Mapping[str, float], "The objective's hyperparameters, including a learned gamma."] = field(
        default_factory=dict[str, float]
    )
    vectors: Annotated[
        Vectors, "The memory of the server and the local step, and a snapshot until its losses are known."
    ] = field(default_factory=dict[str, Tensor])


@record
class Query:
    """Work for clients: to train from ``params``, or to report their loss there."""

    kind: Annotated[Literal["train", "loss"], '``"train"`` or ``"loss"``.']
    round: Annotated[int, "The number of the round."]
    seed: Annotated[int, "The seed of the run."]
    clients: Annotated[tuple[int, ...], "The clients that are asked."]
    weights: Annotated[Tensor, "The weight of each client's reply."]
    params: Annotated[Tensor, "Where clients start, or report their loss."]
    scalars: Annotated[Mapping[str, float], "The hyperparameters of a round: learning rate, gamma, ..."]
    vectors: Annotated[Vectors, "The vectors that a local step needs in addition to the parameters."] = field(
        default_factory=dict[str, Tensor]
    )
    iterates: Annotated[
        Mapping[str, int], "Iterates to send back, by name: each is taken after that many local steps."
    ] = field(default_factory=dict[str, int])
    sends: Annotated[
        tuple[str, ...],
        "The names of the additional vectors that the local step sends back, with its model or with its loss.",
    ] = ()
    nodes: Annotated[
        tuple[int, ...],
        "The number of each client's node; empty if every client is on a separate node. It stays on the server.",
    ] = ()

    def only(self, indices: Sequence[int]) -> Self:
        """Return the same query to only the clients at these indices."""
        clients = tuple(self.clients[index] for index in indices)
        nodes = tuple(self.nodes[index] for index in indices) if self.nodes else ()
        return replace(self, clients=clients, weights=self.weights[list(indices)], nodes=nodes)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of the vectors in each reply."""
        return (PARAMS, *self.iterates, *self.sends) if self.kind == "train" else self.sends


@record
class Replies:
    """The clients' replies, one row each; in training, means are over a first batch, otherwise over all examples."""

    clients: Annotated[tuple[int, ...], "The clients that replied, in the order of the rows."]
    loss: Annotated[Tensor, "The mean of the loss that each client minimizes, at the parameters that the server sent."]
    cost: Annotated[Tensor, "The mean transport cost of the client's moves at these parameters."]
    vectors: Annotated[Vectors, "The vectors that the query wanted, each ``[clients, P]``."] = field(
        default_factory=dict[str, Tensor]
    )

    @property
    def params(self) -> Tensor:
        """The trained parameters, one row per client."""
        return self.vectors[PARAMS]


@dataclass(frozen=True)
class Reply:
    """One client's reply; see :class:`Replies`."""

    client: int
    loss: Tensor
    cost: Tensor
    vectors: Vectors = field(default_factory=dict[str, Tensor])


def weighted_mean(weights: Tensor, rows: Tensor) -> Tensor:
    """Return ``sum_i w_i row_i / sum_i w_i``."""
    return (weights / weights.sum()).to(rows) @ rows


def mean_reply(query: Query, values: Tensor) -> float:
    """Return the mean of one number per client, weighted like the replies, or equally if all weights are 0."""
    weights = query.weights if float(query.weights.sum()) > 0 else torch.ones_like(query.weights)
    return float((weights / weights.sum()) @ values.to(weights))


def named(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    """Return vectors under names that start with the part of the method that owns them."""
    return {f"{owner}.{name}": value for name, value in vectors.items()}


def owned(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    """Return the vectors of one part of the method, under the part's names."""
    return {name.removeprefix(f"{owner}."): value for name, value in vectors.items() if name.startswith(f"{owner}.")}
