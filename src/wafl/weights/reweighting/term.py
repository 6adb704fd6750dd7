"""TERM: tilted losses, from the mean of the clients (t = 0) to the worst (t to infinity) or the best (t below 0).

Li, Beirami, Sanjabi and Smith, "Tilted empirical risk minimization" (ICLR 2021). As in the paper's federated form, the
weights are normalized over the cohort.
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Range, Tunable, frozen, maker
from wafl.weights.reweighting.base import Reweighted


@frozen
class Tilted(Reweighted):
    """TERM: weights ``center_i exp(t loss_i)``, scaled to sum to 1.

    They are those of the gradient of ``1/t log sum_i center_i exp(t loss_i)``.
    """

    t: Annotated[
        float,
        Range(),
        Tunable(30.0),
        "How strongly large losses count; 0 keeps the center, and below 0 they count less, as outliers should.",
    ] = 1.0

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        return torch.softmax(center.log() + self.t * (losses - losses.max()), 0)


term = maker(Tilted)
