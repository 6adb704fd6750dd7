"""SFAT's weights: clients that are easy for the objective's model count more, so that the others do not unsettle it.

Zhu et al., "Combating exacerbated heterogeneity for robust models in federated learning" (ICLR 2023), the alpha-slack
mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Range, Tunable
from wafl.parts.client_weights import ClientWeights
from wafl.weights.fixed import ByExamples
from wafl.weights.reweighting.base import Reweighted


@dataclass(frozen=True)
class Slack(Reweighted):
    """``center_i (1 + alpha)`` for the clients of a cohort with the least loss, otherwise ``center_i (1 - alpha)``.

    The weights are scaled to sum to 1. With ``alpha = 0`` they are those of the center.

    Args:
        alpha: how much more the favored clients count, in [0, 1).
        favored: the share of the cohort that is favored, at least one client; clients with equal losses are favored
            in the order of their numbers.
        center: the weights before losses count.
    """

    alpha: Annotated[
        float, Range(0, 1, high_open=True), Tunable(), "How much more the clients with the smallest losses count."
    ] = 0.2
    favored: Annotated[float, Range(0, 1, low_open=True), "The share of a cohort that counts more."] = 0.2

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        count = max(1, round(self.favored * len(losses)))
        factor = torch.full_like(center, 1.0 - self.alpha)
        factor[losses.argsort(stable=True)[:count]] = 1.0 + self.alpha
        return center * factor / (center * factor).sum()


def slack(alpha: float = 0.2, favored: float = 0.2, center: ClientWeights | None = None) -> Slack:
    """SFAT: the clients of a cohort with the smallest losses count ``1 + alpha``, the others ``1 - alpha``.

    Args:
        alpha: how much more the favored clients count; 0 keeps the center.
        favored: the share of the cohort that is favored.
        center: the weights before losses count; by default each client's share of the examples.
    """
    return Slack(alpha, favored, center=center or ByExamples())
