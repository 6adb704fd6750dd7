"""What most servers have in common: one model is made from those of the clients, and an optimizer steps towards it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torch import Tensor

from wafl.algorithms.messages import Replies, Vectors
from wafl.algorithms.parts import Optimizer
from wafl.algorithms.servers.sgd import SGD


@dataclass(frozen=True)
class Aggregating:
    """A server that hands one model, its aggregate of the clients' models, to an optimizer.

    Args:
        optimizer: what is made of the aggregate; by default it is the next model.
    """

    optimizer: Annotated[Optimizer, "What is made of the aggregate (wafl.servers); by default the next model."] = field(
        default_factory=SGD, kw_only=True
    )

    def aggregate(self, params: Tensor, weights: Tensor, models: Tensor) -> Tensor:
        """One model ``[P]`` from those of the clients, ``[clients, P]``, which started from ``params``.

        At least one of ``weights`` is positive; they need not sum to 1.
        """
        raise NotImplementedError

    def check(self, num_clients: int) -> None:
        """Refuse a server that cannot work with that many clients per round."""

    def initial_vectors(self, params: Tensor) -> Vectors:
        return self.optimizer.initial_vectors(params)

    def step(self, params: Tensor, weights: Tensor, replies: Replies, vectors: Vectors) -> tuple[Tensor, Vectors]:
        return self.optimizer.apply(params, self.aggregate(params, weights, replies.params), vectors)
