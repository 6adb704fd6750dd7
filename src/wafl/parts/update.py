"""The clients' replies of one round, as a server sees them."""

from dataclasses import field
from typing import Annotated

from torch import Tensor

from wafl.base.options import record
from wafl.parts.messages import Vectors, weighted_mean


@record
class Update:
    """One round's replies: n rows, one per client, or one per node if the server asks for that.

    The running statistics of BatchNorm layers are not part of it: their weighted mean is always the next value.
    """

    start: Annotated[Tensor, "The server's model, from which the clients started, ``[P]``."]
    params: Annotated[Tensor, "The clients' models after training, ``[n, P]``."]
    weights: Annotated[Tensor, "How much each client counts in :meth:`mean`; only ratios matter. ``[n]``, float64."]
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
        """How far each client moved from the server's model, ``[n, P]``."""
        return self.params - self.start

    def mean(self, rows: Tensor | None = None) -> Tensor:
        """Return the weighted mean of the clients' models, or of other ``rows``, one per client."""
        if rows is None:
            return weighted_mean(self.weights, self.params) if self.average is None else self.average
        return weighted_mean(self.weights, rows)
