"""CVaR, or the superquantile: the mean loss of the worst clients.

Laguel, Pillutla, Malick and Harchaoui, "A superquantile approach to federated learning with heterogeneous devices"
(CISS 2021); Pillutla et al., "Federated learning with superquantile aggregation for heterogeneous data" (2112.09429,
Machine Learning 2024). As in their algorithm, the quantile is that of the cohort.
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Range, Tunable, frozen, maker
from wafl.weights.reweighting.base import Reweighted


@frozen
class CVaR(Reweighted):
    """CVaR: the worst clients of a cohort alone, those that hold ``1 - alpha`` of its weight.

    The weights maximize ``sum_i lambda_i loss_i`` over ``0 <= lambda_i <= center_i / (1 - alpha)``. With ``alpha = 0``
    these are the weights of the center; near 1 only the worst client of the cohort counts, which is AFL's objective.
    The papers call ``1 - alpha`` the tail fraction theta.
    """

    alpha: Annotated[
        float, Range(0, 1, high_open=True), Tunable(), "The share of the clients, by weight, that does not count."
    ] = 0.5

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        tail = 1.0 - self.alpha
        order = losses.argsort(descending=True, stable=True)
        filled = center[order].cumsum(0)
        last = int(torch.searchsorted(filled, tail).clamp_max(len(losses) - 1))
        quantile = losses[order[last]]
        above, at = losses > quantile, losses == quantile
        # Clients at the quantile share what those above it leave, by their weights in the center.
        rest = (tail - center[above].sum()).clamp_min(0.0)
        weights = torch.where(above, center, 0.0) + torch.where(at, center, 0.0) * (rest / center[at].sum())
        return weights / weights.sum()


cvar = maker(CVaR)
