"""The coordinate-wise median of the clients' models.

Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates" (ICML
2018), algorithm 1, option I.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wafl.base.options import frozen, maker
from wafl.parts.columns import by_columns
from wafl.servers.aggregating import Aggregating

ROUNDING = 1e-12
"""Shares of the weight that differ by less are the same."""


@frozen
class Median(Aggregating):
    """Each parameter is the weighted median of the clients' values: half of the weight lies on either side.

    With equal weights that is the usual median, the mean of the two middle values if there are two. Client weights
    count as votes: whoever has more than half of the weight decides alone. Sizes are claims, so if clients may lie use
    ``client_weights="uniform"``, or cap the examples that a client may claim.
    """

    def aggregate(self, params: Tensor, weights: Tensor, models: Tensor) -> Tensor:
        shares = (weights.double() / weights.sum()).to(models.device)

        def median(part: Tensor) -> Tensor:
            values, order = part.sort(0)
            below = shares[order].cumsum(0)  # the weight at or below each value
            lower = (below < 0.5 - ROUNDING).sum(0, keepdim=True)
            upper = (below <= 0.5 + ROUNDING).sum(0, keepdim=True)
            return (values.gather(0, lower) + values.gather(0, upper))[0] / 2

        return torch.cat(by_columns(median, models))


median = maker(Median)
