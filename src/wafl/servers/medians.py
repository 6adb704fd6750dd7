"""Compute medians of the clients' models, which resist false models from clients with less than half of the weight.

Coordinate-wise median and trimmed mean: Yin et al., "Byzantine-robust distributed learning" (ICML 2018), algorithm 1.
Geometric median: Pillutla et al., "Robust aggregation for federated learning" (IEEE TSP, 2022), algorithm 2.
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Count, Positive, Range, frozen, maker
from wafl.parts.lengths import by_columns, gram
from wafl.parts.messages import weighted_mean
from wafl.parts.server import Update
from wafl.servers.averaging import Aggregating

ROUNDING = 1e-12
"""The difference below which two shares of the weight are equal."""


@frozen
class Median(Aggregating):
    """The weighted median of the clients' values, parameter by parameter: half of the weight lies on either side.

    With equal weights this is the usual median, the mean of the two middle values if there are two. Client weights are
    votes: a client with more than half of the weight decides alone. Clients report their sizes themselves. If clients
    may lie, use ``client_weights="uniform"``, or cap the number of examples that a client may claim.
    """

    def aggregate(self, update: Update) -> Tensor:
        """Return the weighted median of each parameter."""
        shares = (update.weights.double() / update.weights.sum()).to(update.params.device)

        def median(part: Tensor) -> Tensor:
            values, order = part.sort(0)
            below = shares[order].cumsum(0)  # the weight at or below each value
            lower = (below < 0.5 - ROUNDING).sum(0, keepdim=True)
            upper = (below <= 0.5 + ROUNDING).sum(0, keepdim=True)
            return (values.gather(0, lower) + values.gather(0, upper))[0] / 2

        return torch.cat(by_columns(median, update.params))


@frozen
class TrimmedMean(Aggregating):
    """The mean of the clients' values without the lowest and the highest, by weight, parameter by parameter.

    ``trim`` is the share of the weight that is removed at either end; a client that is removed in part keeps the rest
    of its weight. With equal weights and ``trim = k / n``, the k lowest and the k highest of n values are removed.
    The mean is robust to clients with false models if they have at most this share of the weight.
    """

    trim: Annotated[
        float,
        Range(0, 0.5, high_open=True, hint=": it is cut off at both ends"),
        "The share of the weight that is cut off at either end of a parameter's values.",
    ] = 0.2

    def aggregate(self, update: Update) -> Tensor:
        """Return the trimmed mean of each parameter."""
        shares = (update.weights.double() / update.weights.sum()).to(update.params.device)
        low, high = self.trim, 1.0 - self.trim

        def mean(part: Tensor) -> Tensor:
            values, order = part.sort(0)
            width = shares[order]
            top = width.cumsum(0)
            kept = (top.clamp(max=high) - (top - width).clamp(min=low)).clamp(min=0)
            return ((kept * values).sum(0) / kept.sum(0)).to(part)

        return torch.cat(by_columns(mean, update.params))


SETTLED = 1e-12
"""The iteration stops when no client's share changes by more than this."""


@frozen
class GeometricMedian(Aggregating):
    """The model z with the smallest ``sum_i lambda_i ||model_i - z||``.

    Weiszfeld's iteration repeatedly takes the mean of the models with weights ``lambda_i / max(||model_i - z||,
    smoothing)``; ``smoothing`` is relative to the length of the longest update. Client weights are votes: a client with
    more than half of the weight decides alone.
    """

    iterations: Annotated[int, Count(), "The maximum number of Weiszfeld's iterations."] = 1000
    smoothing: Annotated[float, Positive(), "The minimum distance, as a share of the longest update."] = 1e-6

    def aggregate(self, update: Update) -> Tensor:
        """Return the geometric median of the models."""
        # Every iterate is a mean of the models, so the iteration runs on its shares and the models' inner products.
        products = gram(update.params, update.start).cpu()
        squares, weights = products.diagonal(), update.weights.cpu().double()
        least = self.smoothing * float(squares.max().sqrt())
        shares = weights / weights.sum()
        for _ in range(self.iterations if least > 0 else 0):
            along = products @ shares
            distances = (squares - 2.0 * along + shares @ along).clamp(min=0).sqrt()
            pull = weights / distances.clamp(min=least)
            last, shares = shares, pull / pull.sum()
            if float((shares - last).abs().max()) < SETTLED:
                break
        return weighted_mean(shares, update.params)


median = maker(Median)
trimmed_mean = maker(TrimmedMean)
geometric_median = maker(GeometricMedian)
