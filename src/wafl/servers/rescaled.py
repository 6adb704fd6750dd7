"""Rescale the clients' updates before or after averaging: FedGMA, FedNova and FedExP.

FedGMA: Tenison et al., "Gradient masked averaging for federated learning" (TMLR 2023). FedNova: Wang et al., "Tackling
the objective inconsistency problem in heterogeneous federated optimization" (NeurIPS 2020), for clients that take plain
gradient steps. FedExP: Jhunjhunwala, Wang and Joshi, "FedExP: Speeding up federated averaging via extrapolation" (ICLR
2023).
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, Range, Tunable, frozen, maker
from wafl.parts.lengths import lengths_of
from wafl.parts.server import Update
from wafl.servers.averaging import Aggregating

Agreement = Annotated[float, Range(0, 1), Tunable(), "The agreement at which a parameter moves in full."]
"""The option ``threshold`` of the server and of FedGMA."""


@frozen
class Masked(Aggregating):
    """The mean update, each coordinate scaled by the clients' agreement on its sign.

    The agreement ``|sum_i w_i sign(update_i)|`` of a coordinate is 1 if all clients move it in the same direction. At
    or above ``threshold`` the coordinate moves in full; below, it is multiplied by its agreement. With a threshold of 0
    this is the mean.
    """

    threshold: Agreement = 0.4

    def aggregate(self, update: Update) -> Tensor:
        """Return the model after the masked mean update."""
        deltas = update.deltas
        agreement = update.mean(deltas.sign()).abs()
        mask = torch.where(agreement >= self.threshold, 1.0, agreement)
        return update.start + mask * update.mean(deltas)


@frozen
class Normalized(Aggregating):
    """``start + tau sum_i w_i (model_i - start) / tau_i``, with ``tau_i`` local steps and ``tau = sum_i w_i tau_i``.

    It differs from the mean if clients take different numbers of steps, as with ``local_epochs``. The server computes
    the number of steps from the client's reported size. Momentum is not taken into account.
    """

    one_per_node = False

    def needs_sizes(self, local_steps: int | None) -> bool:
        """Return whether the server needs the clients' sizes: only without a fixed number of local steps."""
        return local_steps is None

    def aggregate(self, update: Update) -> Tensor:
        """Return the model after the normalized mean update."""
        directions = update.deltas / update.steps[:, None]
        return update.start + update.mean(update.steps) * update.mean(directions)


Epsilon = Annotated[
    float,
    Positive(),
    Tunable(gentle="high"),
    "Added to the squared length of the mean update; larger is a shorter step.",
]
"""The option ``epsilon`` of the server and of FedExP."""


@frozen
class Extrapolated(Aggregating):
    """``start + rate mean``, with ``rate = max(1, sum_i w_i ||update_i||^2 / (2 (||mean||^2 + epsilon)))``.

    Here ``mean = sum_i w_i update_i`` is the mean update and ``w_i`` are the client weights, which are equal in the
    paper. The models of successive rounds may oscillate: average the last ones with ``average_last``.
    """

    epsilon: Epsilon = 1e-3
    one_per_node = False

    def aggregate(self, update: Update) -> Tensor:
        """Return the model after the extrapolated mean update."""
        squares = lengths_of(update.start, update.params).square()
        step = update.mean() - update.start
        rate = update.mean(squares) / (2.0 * (step.double().square().sum() + self.epsilon))
        return update.start + rate.clamp(min=1.0).to(step) * step


masked = maker(Masked)
normalized = maker(Normalized)
extrapolated = maker(Extrapolated)
