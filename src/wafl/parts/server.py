"""The base classes of servers, which turn the clients' replies into the next model."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from wafl.base.options import Part
from wafl.parts.messages import Vectors
from wafl.parts.update import Update


class Optimizer(Part, ABC):
    """A step from the mean of the clients' models to the next model: ``mean - params`` is the negative gradient."""

    slot = "server"

    def initial_memory(self, params: Tensor) -> Vectors:
        """Return the memory before the first round: vectors by name."""
        return {}

    @abstractmethod
    def apply(self, params: Tensor, mean: Tensor, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Return the next parameters and the next memory."""


class Server(Part, ABC):
    """A rule that turns the clients' replies into the next model: write :meth:`step`, and override what differs."""

    slot = "server"
    optimizer: Optimizer | None = None
    """The optimizer that steps to the aggregate; None for a server without one."""
    one_per_node: ClassVar[bool] = True
    """If True, the clients of a node are merged into one row, so a node has one vote however many clients it has."""

    @property
    def averages(self) -> bool:
        """Whether :meth:`step` uses only the weighted mean of the models, so that nodes may send partial sums."""
        return False

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return whether it uses ``update.sizes``, or ``update.steps`` with local epochs (``local_steps`` is None).

        Clients then tell the server how many examples they have, whatever the client weights are.
        """
        return False

    def check(self, num_clients: int) -> None:
        """Raise ValueError if the server cannot work with this many clients per round."""

    def at_rate(self, rate: float) -> "Server | None":
        """Return this server with another learning rate, or None if it has none."""
        return None

    def initial_memory(self, params: Tensor) -> Vectors:
        """Return the memory before the first round: vectors by name."""
        return {}

    def aggregate(self, update: Update) -> Tensor:
        """Return one model ``[P]`` from the clients' models: by default their weighted mean.

        DRFA's snapshot is aggregated in this way too. At least one weight is positive.
        """
        return update.mean()

    @abstractmethod
    def step(self, update: Update, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Return the next parameters ``[P]`` and the next memory."""
