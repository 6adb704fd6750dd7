"""The coordinate-wise median and the coordinate-wise trimmed mean of the clients' models.

Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates" (ICML
2018), algorithm 1, options I and II.
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Range, frozen, maker
from wafl.parts.columns import by_columns
from wafl.servers.averaging import Aggregating

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


@frozen
class TrimmedMean(Aggregating):
    """Each parameter is the mean of the clients' values without the lowest and the highest, by weight.

    ``trim`` is the share of the weight that is cut off at either end; a client that is cut only in part counts with the
    rest of its weight. With equal weights and ``trim = k / n``, the k lowest and the k highest of n values are cut. It
    holds against liars that have at most this share of the weight.
    """

    trim: Annotated[
        float,
        Range(0, 0.5, high_open=True, hint=": it is cut off at both ends"),
        "The share of the weight that is cut off at either end of a parameter's values.",
    ] = 0.2

    def aggregate(self, params: Tensor, weights: Tensor, models: Tensor) -> Tensor:
        shares = (weights.double() / weights.sum()).to(models.device)
        low, high = self.trim, 1.0 - self.trim

        def mean(part: Tensor) -> Tensor:
            values, order = part.sort(0)
            width = shares[order]
            top = width.cumsum(0)
            kept = (top.clamp(max=high) - (top - width).clamp(min=low)).clamp(min=0)
            return ((kept * values).sum(0) / kept.sum(0)).to(part)

        return torch.cat(by_columns(mean, models))


median = maker(Median)
trimmed_mean = maker(TrimmedMean)
