"""Define the base classes of servers, which turn the clients' replies into the next model, and their input."""

from abc import ABC, abstractmethod
from dataclasses import field
from typing import Annotated, ClassVar

from torch import Tensor

from wafl.base.options import Part, record
from wafl.parts.messages import Vectors, weighted_mean


@record
class Update:
    """One round's replies: n rows, one per client, or one per node if the server requests it.

    The running statistics of BatchNorm layers are excluded: their next value is always their weighted mean.
    """

    start: Annotated[Tensor, "The server's model, from which the clients started, ``[P]``."]
    params: Annotated[Tensor, "The clients' models after training, ``[n, P]``."]
    weights: Annotated[Tensor, "Each client's weight in :meth:`mean`; only ratios matter. ``[n]``, float64."]
    shares: Annotated[
        Tensor,
        "Each client's share of the weight of all clients, lambda: 1 / num_clients if all weights are equal. ``[n]``, "
        "float64.",
    ]
    steps: Annotated[
        Tensor,
        "The number of local steps that each client took, ``[n]``; with local epochs it follows from the client's "
        "size.",
    ]
    sizes: Annotated[
        Tensor,
        "The number of examples that each client says it has, ``[n]``, float64; 0 if the server does not know it (see "
        ":meth:`Server.needs_sizes`).",
    ]
    losses: Annotated[Tensor, "The loss that each client sent with its model, ``[n]``; usually of its first batch."]
    costs: Annotated[Tensor, "The transport cost that each client sent with its model, ``[n]``."]
    num_clients: Annotated[int, "The number of all clients, including those that did not reply."]
    vectors: Annotated[Vectors, "The other vectors that the local step sends, by name, each ``[n, P]``."] = field(
        default_factory=dict[str, Tensor]
    )
    average: Annotated[Tensor | None, "The weighted mean of ``params``, if it is known already."] = None

    @property
    def deltas(self) -> Tensor:
        """The difference of each client's model from the server's, ``[n, P]``."""
        return self.params - self.start

    def mean(self, rows: Tensor | None = None) -> Tensor:
        """Return the weighted mean of the clients' models, or of other ``rows``, one per client."""
        if rows is None:
            return weighted_mean(self.weights, self.params) if self.average is None else self.average
        return weighted_mean(self.weights, rows)


class Optimizer(Part, ABC):
    """A step from the server's model toward the clients' mean: ``mean - params`` is the negative gradient."""

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
    """The optimizer that steps toward the aggregate; None for a server without one."""
    one_per_node: ClassVar[bool] = True
    """If True, the clients of a node are merged into one row, so each node has one vote."""

    @property
    def averages(self) -> bool:
        """Whether :meth:`step` uses only the weighted mean of the models, so that nodes may send partial sums."""
        return False

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return whether the server uses ``update.sizes``, or ``update.steps`` with local epochs.

        Clients then tell the server their numbers of examples, whatever the client weights are. ``local_steps`` is None
        with local epochs.
        """
        return False

    def check(self, num_clients: int) -> None:
        """Raise ValueError if the server cannot work with this many clients per round."""

    def at_rate(self, rate: float) -> "Server | None":
        """Return this server with a different learning rate, or None if it has no learning rate."""
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
