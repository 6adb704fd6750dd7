"""The server of FedAvg and of the paper's Algorithm 1: the mean of the clients' models, weighted by lambda.

McMahan et al., "Communication-efficient learning of deep networks from decentralized data" (AISTATS 2017).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from wafl.algorithms.messages import Replies, Vectors, weighted_mean
from wafl.algorithms.parts import Optimizer
from wafl.algorithms.servers.sgd import SGD


@dataclass(frozen=True)
class Averaging:
    """The weighted mean of the clients' models, handed to an optimizer.

    Args:
        optimizer: what is made of the mean; by default it is the next model.
    """

    optimizer: Optimizer = field(default_factory=SGD)

    def initial_vectors(self, params: Tensor) -> Vectors:
        return self.optimizer.initial_vectors(params)

    def step(self, params: Tensor, weights: Tensor, replies: Replies, vectors: Vectors) -> tuple[Tensor, Vectors]:
        return self.optimizer.apply(params, weighted_mean(weights, replies.params), vectors)


averaging = Averaging
