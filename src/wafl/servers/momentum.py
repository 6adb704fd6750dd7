"""FedAvgM: momentum on the server.

Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual classification"
(2019).
"""

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, Range, Tunable, frozen, maker
from wafl.parts.messages import Vectors
from wafl.parts.server import Optimizer


@frozen
class Momentum(Optimizer):
    """``v <- beta v + (mean - params)``, ``params <- params + rate v``."""

    rate: Annotated[float, Positive(), Tunable(), "The server's learning rate."] = 1.0
    beta: Annotated[float, Range(0, 1, high_open=True), Tunable(), "The share of the last velocity that is kept."] = 0.9

    def initial_vectors(self, params: Tensor) -> Vectors:
        return {"velocity": torch.zeros_like(params)}

    def apply(self, params: Tensor, mean: Tensor, vectors: Vectors) -> tuple[Tensor, Vectors]:
        velocity = self.beta * vectors["velocity"] + (mean - params)
        return params + self.rate * velocity, {"velocity": velocity}


momentum = maker(Momentum)
