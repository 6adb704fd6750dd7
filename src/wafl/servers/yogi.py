"""FedYogi: like FedAdam, with a mean square that changes by no more than the latest square.

Reddi et al., "Adaptive federated optimization" (ICLR 2021), algorithm 2.
"""

from __future__ import annotations

from torch import Tensor

from wafl.base.options import frozen, maker
from wafl.servers.adam import Adam


@frozen
class Yogi(Adam):
    """Like :class:`Adam`, but with ``v <- v - (1 - beta2) d^2 sign(v - d^2)``."""

    def next_square(self, square: Tensor, latest: Tensor) -> Tensor:
        return square - (1.0 - self.beta2) * latest * (square - latest).sign()


yogi = maker(Yogi)
