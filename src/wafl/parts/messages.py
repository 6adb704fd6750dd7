"""What server and clients send each other, and what the server remembers: plain data with named vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

from wafl.base.options import record

PARAMS = "params"
"""The vector that every client sends back after training: where its parameters ended."""
GRADIENT = "gradient"
"""A vector that clients may send with the loss that they report before training: the gradient on all their examples."""
Vectors = Mapping[str, Tensor]
"""Vectors as long as the parameters, by name."""


@record
class State:
    """All that a server remembers between queries: plain data, so a checkpoint is the state."""

    round: Annotated[int, "The round that comes next, or is under way."]
    params: Annotated[Tensor, "The model, one vector ``[P]``."]
    client_weights: Annotated[Tensor, "Lambda, one weight per client."]
    scalars: Annotated[Mapping[str, float], "The objective's hyperparameters, among them a learned gamma."] = field(
        default_factory=dict[str, float]
    )
    vectors: Annotated[
        Vectors, "What the server and the local step remember, and a snapshot until its losses are known."
    ] = field(default_factory=dict[str, Tensor])


@record
class Query:
    """Work asked of clients: to train from ``params``, or to report their loss there."""

    kind: Annotated[Literal["train", "loss"], '``"train"`` or ``"loss"``.']
    round: Annotated[int, "The number of the round."]
    seed: Annotated[int, "The seed of the run."]
    clients: Annotated[tuple[int, ...], "The clients that are asked."]
    weights: Annotated[Tensor, "How much each client's reply will count."]
    params: Annotated[Tensor, "Where clients start, or report their loss."]
    scalars: Annotated[Mapping[str, float], "The hyperparameters of a round: learning rate, gamma, ..."]
    vectors: Annotated[Vectors, "What a local step needs in addition to the parameters."] = field(
        default_factory=dict[str, Tensor]
    )
    iterates: Annotated[
        Mapping[str, int], "Iterates to send back, by name: each is taken after that many local steps."
    ] = field(default_factory=dict[str, int])
    sends: Annotated[
        tuple[str, ...],
        "The names of the further vectors that the local step sends back, with its model or with its loss.",
    ] = ()
    nodes: Annotated[
        tuple[int, ...],
        "The node of each client, by number; empty if every client is by itself. It stays on the server.",
    ] = ()

    def only(self, indices: Sequence[int]) -> Self:
        """Return the same query to the clients at these indices alone."""
        clients = tuple(self.clients[index] for index in indices)
        nodes = tuple(self.nodes[index] for index in indices) if self.nodes else ()
        return replace(self, clients=clients, weights=self.weights[list(indices)], nodes=nodes)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of the vectors in each reply."""
        return (PARAMS, *self.iterates, *self.sends) if self.kind == "train" else self.sends


@record
class Replies:
    """What clients send back, one row each; means are over a first batch in training, otherwise over all examples."""

    clients: Annotated[tuple[int, ...], "The clients that replied, in the order of the rows."]
    loss: Annotated[Tensor, "The mean of what each client minimizes, at the parameters it was sent."]
    cost: Annotated[Tensor, "The mean transport cost that its objective paid there."]
    vectors: Annotated[Vectors, "The vectors that the query wanted, each ``[clients, P]``."] = field(
        default_factory=dict[str, Tensor]
    )

    @property
    def params(self) -> Tensor:
        return self.vectors[PARAMS]


@dataclass(frozen=True)
class Reply:
    """What one client sends back; see :class:`Replies`."""

    client: int
    loss: Tensor
    cost: Tensor
    vectors: Vectors = field(default_factory=dict[str, Tensor])


def weighted_mean(weights: Tensor, rows: Tensor) -> Tensor:
    """``sum_i w_i row_i / sum_i w_i``."""
    return (weights / weights.sum()).to(rows) @ rows


def mean_reply(query: Query, values: Tensor) -> float:
    """The mean of one number per client, weighted like the replies, or equally if no reply has any weight."""
    weights = query.weights if float(query.weights.sum()) > 0 else torch.ones_like(query.weights)
    return float((weights / weights.sum()) @ values.to(weights))


def named(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    """Vectors under names that say which part of the method they belong to."""
    return {f"{owner}.{name}": value for name, value in vectors.items()}


def owned(owner: str, vectors: Vectors) -> dict[str, Tensor]:
    """The vectors of one part of the method, under the names that the part gave them."""
    return {name.removeprefix(f"{owner}."): value for name, value in vectors.items() if name.startswith(f"{owner}.")}
