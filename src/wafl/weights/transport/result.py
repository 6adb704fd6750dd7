"""What every choice of client weights from optimal transport returns."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from wafl.weights.fixed import Fixed
from wafl.weights.transport.distances import Distance, Method


@dataclass(frozen=True)
class TransportWeights(Fixed):
    """Client weights, and how far the mixture ``P_lambda`` that they make lies from what it should be near.

    Can be passed to :func:`wafl.fit` as ``client_weights``. ``weights`` has one number per source, and they sum to 1.
    ``value`` is the squared W_2 distance that was minimized, between the points that were used, or if ``kind`` is
    ``entropic`` its debiased estimate, and at most ``gap`` above its minimum. ``distances`` are squared too; the rule's
    docstring says between what. ``standard_errors`` are theirs, or nan if unknown: they only account for the draw of
    the points, and are 0 if all points were used.
    """

    rule: str
    kind: Method
    value: float
    gap: float
    distances: tuple[float, ...]
    standard_errors: tuple[float, ...]

    @classmethod
    def of(
        cls, rule: str, weights: Iterable[float], value: float, distances: Sequence[Distance], gap: float = 0.0,
        kind: Method = "exact",
    ) -> Self:  # fmt: skip
        """Return the weights that a rule chose, with the distances at these weights."""
        values, errors = zip(*((each.value, each.standard_error) for each in distances), strict=True)
        return cls(tuple(weights), rule, kind, value, gap, values, errors)

    @property
    def weights(self) -> tuple[float, ...]:
        return self.values

    @property
    def radius(self) -> float:
        """``sqrt(value)``: the radius of the W_2 ball around ``P_lambda`` that reaches the target, or every client."""
        return math.sqrt(self.value)

    def __str__(self) -> str:
        weights = ", ".join(f"{weight:.3g}" for weight in self.values)
        return f"{self.rule}: W_2^2 = {self.value:.6g} ({self.kind}, gap {self.gap:.2g}) at weights ({weights})"
