"""What travels between a server and its clients, and what the server remembers: plain data with named vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

PARAMS = "params"
"""The vector that every client sends back after training: where its parameters ended."""
Vectors = Mapping[str, Tensor]
"""Vectors as long as the parameters, by name."""


@dataclass(frozen=True)
class State:
    """All that a server remembers between queries: plain data, so a checkpoint is the state."""

    round: int
    params: Tensor
    client_weights: Tensor
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])
    vectors: Vectors = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True)
class Query:
    """Work asked of clients: to train from ``params``, or to report their loss there.

    ``weights`` is how much each client's reply will count. ``vectors`` is what a local step needs in addition to the
    parameters. ``iterates`` names iterates to send back: each as it is after that many local steps. ``sends`` names the
    further vectors that the local step sends back.
    """

    kind: Literal["train", "loss"]
    round: int
    seed: int
    clients: tuple[int, ...]
    weights: Tensor
    params: Tensor
    scalars: Mapping[str, float]
    vectors: Vectors = field(default_factory=dict[str, Tensor])
    iterates: Mapping[str, int] = field(default_factory=dict[str, int])
    sends: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of the vectors in each reply."""
        return (PARAMS, *self.iterates, *self.sends) if self.kind == "train" else ()


@dataclass(frozen=True)
class Replies:
    """One row per client, in the order of ``clients``.

    ``loss`` and ``cost`` are means over the client's first batch (to train) or all its examples (to report):
    of what it minimizes, at the parameters it was sent, and of the transport cost its adversary paid. ``vectors`` are
    those that the query wanted, each ``[clients, P]``.
    """

    clients: tuple[int, ...]
    loss: Tensor
    cost: Tensor
    vectors: Vectors = field(default_factory=dict[str, Tensor])

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
    """The mean of one number per client, each counting as its reply does (all alike if none counts)."""
    weights = query.weights if float(query.weights.sum()) > 0 else torch.ones_like(query.weights)
    return float((weights / weights.sum()) @ values.to(weights))
