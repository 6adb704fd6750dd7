"""Shift weights from the center toward clients with large losses, within a ball or at a price: chi-squared and KL.

Namkoong and Duchi, "Stochastic gradient methods for distributionally robust optimization with f-divergences" (NIPS
2016), find the chi-squared weights of examples by sampling, and FGDRO-KL estimates losses by moving averages over
mini-batches. Here clients report their losses on all their examples, and the weights are exact. The papers do not
weight a partial cohort by its losses; that extension is ours.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from wafl.base.options import NotNegative, Positive, Tunable, frozen, maker
from wafl.weights.reweighted import Reweighted


def leaning(
    lean: Callable[[float], Tensor], divergence: Callable[[float], float], radius: float, most: float
) -> Tensor:
    """Return ``lean(t)`` for the largest t in [0, most] whose divergence, which grows with t, is at most the radius."""
    if divergence(most) <= radius:
        return lean(most)
    low, high = 0.0, most
    for _ in range(200):  # enough for an interval to shrink to two neighboring numbers in double precision
        middle = (low + high) / 2.0
        low, high = (middle, high) if divergence(middle) <= radius else (low, middle)
    return lean(low)


@frozen
class Chi2(Reweighted):
    """Chi-squared: weights ``center_i max(loss_i - eta, 0)``, scaled to sum to 1, at a distance from the center.

    They maximize ``sum_i lambda_i loss_i`` over ``1/2 sum_i (lambda_i - center_i)^2 / center_i <= radius``. As long as
    no client loses all its weight, training minimizes the mean loss plus ``sqrt(2 radius)`` standard deviations.
    """

    radius: Annotated[float, NotNegative, Tunable(), "The maximum distance from the center; 0 keeps the center."] = 0.5

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """Return the chi-squared weights for these losses."""
        gaps = losses.max() - losses
        if not bool((gaps > 0).any()):
            return center

        def lean(t: float) -> Tensor:
            weights = center * (1.0 - t * gaps).clamp_min(0.0)
            return weights / weights.sum()

        def divergence(t: float) -> float:
            return 0.5 * float(((lean(t) - center).square() / center).sum())

        return leaning(lean, divergence, self.radius, 1.0 / float(gaps[gaps > 0].min()))


@frozen
class KL(Reweighted):
    """KL: weights ``center_i exp(loss_i / temperature)``, scaled to sum to 1; give a temperature or a radius.

    They maximize ``sum_i lambda_i loss_i - temperature KL(lambda, center)``. With a radius, the temperature is chosen
    such that ``KL(lambda, center) = sum_i lambda_i log(lambda_i / center_i)`` equals the radius.
    """

    temperature: Annotated[
        float | None,
        Positive(),
        Tunable(30.0, "high"),
        "The price of weights that differ from the center; 1 if you give neither.",
    ] = None
    radius: Annotated[
        float | None,
        NotNegative,
        Tunable(),
        "The largest KL divergence from the center, instead of a temperature; 0 keeps the center.",
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature is not None and self.radius is not None:
            raise ValueError(
                f"give temperature or radius, not both (temperature={self.temperature}, radius={self.radius}): "
                "each determines the other"
            )
        if self.temperature is None and self.radius is None:
            object.__setattr__(self, "temperature", 1.0)

    def changed(self, **options: Any) -> Self:
        """Return a copy with other options; a new temperature replaces a radius, and a new radius a temperature."""
        if options.get("temperature") is not None and "radius" not in options:
            options["radius"] = None
        elif options.get("radius") is not None and "temperature" not in options:
            options["temperature"] = None
        return replace(self, **options)

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        """Return the KL weights for these losses."""
        gaps = losses.max() - losses

        def lean(t: float) -> Tensor:
            return center * (1.0 + excess(t))

        def excess(t: float) -> Tensor:
            """Return ``lambda / center - 1``, computed without losing the digits of small values."""
            return torch.expm1(-t * gaps - torch.log1p((center * torch.expm1(-t * gaps)).sum()))

        if self.radius is None:
            assert self.temperature is not None
            return lean(1.0 / self.temperature)
        if not bool((gaps > 0).any()):
            return center
        far = 1e3 / float(gaps[gaps > 0].min())  # exp(-1000) is 0

        def divergence(t: float) -> float:
            more = excess(t)
            return float((center * (torch.special.xlog1py(1.0 + more, more) - more)).sum())

        return leaning(lean, divergence, self.radius, far)


chi2 = maker(Chi2)
kl = maker(KL)
