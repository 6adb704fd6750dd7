"""What a server is: the base classes of what becomes of the clients' models."""

from abc import ABC, abstractmethod

from torch import Tensor

from wafl.base.options import Part
from wafl.parts.messages import Replies, Vectors, weighted_mean


class Optimizer(Part, ABC):
    """A step from the mean of the clients' models to the next model: ``mean - params`` is the negative gradient."""

    slot = "server"

    def initial_vectors(self, params: Tensor) -> Vectors:
        """What it remembers before the first round."""
        return {}

    @abstractmethod
    def apply(self, params: Tensor, mean: Tensor, vectors: Vectors) -> tuple[Tensor, Vectors]:
        """The next parameters and vectors."""


class Server(Part, ABC):
    """What makes the next model of the clients' replies; a server remembers things in vectors of its own."""

    slot = "server"
    optimizer: Optimizer | None = None
    """What makes the next model of its aggregate; None for a server that does so itself."""

    @property
    def averages(self) -> bool:
        """Whether it needs nothing of the clients' models but their weighted mean."""
        return False

    def check(self, num_clients: int) -> None:
        """Refuse to work with that many clients per round."""

    def at_rate(self, rate: float) -> "Server | None":
        """The same server with this learning rate; None for one that has another way to step."""
        return None

    def initial_vectors(self, params: Tensor) -> Vectors:
        """What it remembers before the first round."""
        return {}

    def aggregate(self, params: Tensor, weights: Tensor, models: Tensor) -> Tensor:
        """One vector ``[P]`` from those of the clients, ``[clients, P]``, which started from ``params``.

        At least one of ``weights`` is positive; they need not sum to 1. Statistics and snapshots are aggregated so.
        """
        return weighted_mean(weights, models)

    @abstractmethod
    def step(self, params: Tensor, combined: Tensor, replies: Replies, vectors: Vectors) -> tuple[Tensor, Vectors]:
        """The next parameters and vectors; ``combined`` is what :meth:`aggregate` made of the clients' models."""
