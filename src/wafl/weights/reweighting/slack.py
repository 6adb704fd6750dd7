"""SFAT's weights: clients with small losses count more, so that the others do not unsettle adversarial training.

Zhu et al., "Combating exacerbated heterogeneity for robust models in federated learning" (ICLR 2023), the alpha-slack
mechanism.
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Range, Tunable, frozen, maker
from wafl.weights.reweighting.base import Reweighted


@frozen
class Slack(Reweighted):
    """SFAT: the clients of a cohort with the smallest losses count ``1 + alpha``, the others ``1 - alpha``.

    These factors multiply the weights of the center, and the products are scaled to sum to 1. At least one client is
    favored, and clients with equal losses in the order of their numbers.
    """

    alpha: Annotated[
        float,
        Range(0, 1, high_open=True),
        Tunable(),
        "How much more the clients with the smallest losses count; 0 keeps the center.",
    ] = 0.2
    favored: Annotated[float, Range(0, 1, low_open=True), "The share of a cohort that counts more."] = 0.2

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        count = max(1, round(self.favored * len(losses)))
        factor = torch.full_like(center, 1.0 - self.alpha)
        factor[losses.argsort(stable=True)[:count]] = 1.0 + self.alpha
        return center * factor / (center * factor).sum()


slack = maker(Slack)
