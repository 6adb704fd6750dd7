"""FedYogi: like FedAdam, with a mean square that changes by no more than the latest square.

Reddi et al., "Adaptive federated optimization" (ICLR 2021), algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wafl.base.options import maker
from wafl.servers.adam import Adam


@dataclass(frozen=True)
class Yogi(Adam):
    """Like :class:`Adam`, but with ``v <- v - (1 - beta2) d^2 sign(v - d^2)``.

    Args:
        rate: the server's learning rate.
        beta1: the share of the last mean direction that is kept.
        beta2: how slowly the mean square follows.
        tau: added to the root mean square; the larger it is, the less the step adapts.
    """

    def next_square(self, square: Tensor, latest: Tensor) -> Tensor:
        return square - (1.0 - self.beta2) * latest * (square - latest).sign()


yogi = maker(Yogi)
