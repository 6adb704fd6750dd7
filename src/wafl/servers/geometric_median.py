"""The geometric median of the clients' models, by Weiszfeld's iteration.

Pillutla, Kakade and Harchaoui, "Robust aggregation for federated learning" (IEEE Transactions on Signal Processing,
2022), algorithm 2, the smoothed Weiszfeld algorithm.
"""

from typing import Annotated

from torch import Tensor

from wafl.base.options import Count, Positive, frozen, maker
from wafl.parts.columns import gram
from wafl.parts.messages import weighted_mean
from wafl.servers.averaging import Aggregating

SETTLED = 1e-12
"""The iteration ends when no share of a client changes by more than this."""


@frozen
class GeometricMedian(Aggregating):
    """The model z with the smallest ``sum_i lambda_i ||model_i - z||``.

    Weiszfeld's iteration takes the mean of the models with weights ``lambda_i / max(||model_i - z||, smoothing)``, over
    and over; ``smoothing`` is relative to the length of the longest update. Client weights count as votes: whoever has
    more than half of the weight decides alone.
    """

    iterations: Annotated[int, Count(), "The most of Weiszfeld's iterations."] = 1000
    smoothing: Annotated[float, Positive(), "Distances below this share of the longest update count as this."] = 1e-6

    def aggregate(self, params: Tensor, weights: Tensor, models: Tensor) -> Tensor:
        # Every iterate is a mean of the models, so the iteration runs on its shares and the models' inner products.
        products = gram(models, params).cpu()
        squares, weights = products.diagonal(), weights.cpu().double()
        least = self.smoothing * float(squares.max().sqrt())
        shares = weights / weights.sum()
        for _ in range(self.iterations if least > 0 else 0):
            along = products @ shares
            distances = (squares - 2.0 * along + shares @ along).clamp(min=0).sqrt()
            pull = weights / distances.clamp(min=least)
            last, shares = shares, pull / pull.sum()
            if float((shares - last).abs().max()) < SETTLED:
                break
        return weighted_mean(shares, models)


geometric_median = maker(GeometricMedian)
