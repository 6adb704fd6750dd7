"""q-FFL: losses to the power ``q + 1``, so that clients are served more alike.

Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning" (ICLR 2020), q-FedAvg, with their
estimate ``1 / learning_rate`` of the Lipschitz constant. The paper draws clients by their share of the examples and
counts them alike; here they are drawn uniformly and count by their share, as in FedAvg.
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import NotNegative, Tunable, frozen, maker
from wafl.weights.reweighting.base import Reweighted


@frozen
class QFair(Reweighted):
    """q-FFL: weights ``center_i loss_i^q``, scaled to sum to 1, and a step of the server that fits them.

    The clients then descend ``sum_i center_i loss_i^(q + 1) / (q + 1)``. The step of the server is shortened to the
    share ``sum_i center_i loss_i^q / sum_i h_i`` of itself, with ``h_i = center_i (loss_i^q + q loss_i^(q - 1)
    ||update_i||^2 / learning_rate)``.
    """

    q: Annotated[float, NotNegative, Tunable(), "How much more clients with larger losses count; 0 is FedAvg."] = 1.0

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        if bool((losses < 0).any()):
            raise ValueError(
                f"q-FFL takes losses to the power q={self.q:g}, and a client has the loss {float(losses.min()):.3g}: "
                "use a loss that is never negative, or weights that do not need this, such as term(t)"
            )
        largest = losses.max()
        if not float(largest) > 0:
            return center  # every client fits its data exactly
        weights = center * (losses / largest) ** self.q
        return weights / weights.sum()

    def damping(self, weights: Tensor, losses: Tensor, squared_lengths: Tensor, rate: float) -> float:
        """The paper's ``Delta / h`` as a share of the mean update.

        A client whose loss is 0 adds nothing: a smooth loss that is never negative has ``||gradient||^2 <= 2 L loss``,
        so ``loss^(q - 1) ||gradient||^2`` vanishes with the loss, even if q is below 1.
        """
        relative = torch.where(losses > 0, squared_lengths / losses, 0.0)
        return float(1.0 / (1.0 + self.q / rate * (weights @ relative)))


qffl = maker(QFair)
