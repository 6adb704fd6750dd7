"""FedExP's server: the more the clients' updates differ, the longer the step along their mean.

Jhunjhunwala, Wang and Joshi, "FedExP: Speeding up federated averaging via extrapolation" (ICLR 2023).
"""

from typing import Annotated

from torch import Tensor

from wafl.base.options import Positive, Tunable, frozen, maker
from wafl.parts.lengths import lengths_of
from wafl.parts.update import Update
from wafl.servers.averaging import Aggregating

Epsilon = Annotated[
    float,
    Positive(),
    Tunable(gentle="high"),
    "Added to the squared length of the mean update; larger is a shorter step.",
]
"""The option of the server and of FedExP."""


@frozen
class Extrapolated(Aggregating):
    """``start + rate mean``, with ``rate = max(1, sum_i w_i ||update_i||^2 / (2 (||mean||^2 + epsilon)))``.

    Here ``mean = sum_i w_i update_i`` is the mean update and ``w_i`` are the client weights, which the paper has equal.
    The models of successive rounds may oscillate: average the last ones with ``average_last``.
    """

    epsilon: Epsilon = 1e-3
    one_per_node = False

    def aggregate(self, update: Update) -> Tensor:
        squares = lengths_of(update.start, update.params).square()
        step = update.mean() - update.start
        rate = update.mean(squares) / (2.0 * (step.double().square().sum() + self.epsilon))
        return update.start + rate.clamp(min=1.0).to(step) * step


extrapolated = maker(Extrapolated)
