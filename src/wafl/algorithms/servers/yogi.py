"""FedYogi: as FedAdam, with a mean square that changes by no more than the latest square.

Reddi et al., "Adaptive federated optimization" (ICLR 2021), algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from wafl.algorithms.choices import Stepped, Weighted, part
from wafl.algorithms.servers.adam import Adam


@dataclass(frozen=True)
class Yogi(Adam):
    """As :class:`Adam`, but ``v <- v - (1 - beta2) d^2 sign(v - d^2)``."""

    def next_square(self, square: Tensor, latest: Tensor) -> Tensor:
        return square - (1.0 - self.beta2) * latest * (square - latest).sign()


yogi = Yogi


@dataclass(frozen=True)
class FedYogi(Yogi, Weighted, Stepped):
    """FedAvg with Yogi on the server."""

    def parts(self) -> dict[str, Any]:
        return {"server": part(self, Yogi)}
