"""A plain step of the server; with a rate of 1, as in FedAvg, it ends at the mean itself."""

from typing import Annotated

from torch import Tensor

from wafl.base.options import Positive, frozen, maker
from wafl.parts.messages import Vectors
from wafl.parts.server import Optimizer


@frozen
class SGD(Optimizer):
    """``params <- params + rate (mean - params)``."""

    rate: Annotated[float, Positive(), "The server's learning rate; 1 takes the clients' mean."] = 1.0

    def apply(self, params: Tensor, mean: Tensor, vectors: Vectors) -> tuple[Tensor, Vectors]:
        return mean if self.rate == 1.0 else params + self.rate * (mean - params), vectors


sgd = maker(SGD)
