"""V-REx over clients: the mean of the losses plus a multiple of their variance.

Krueger et al., "Out-of-distribution generalization via risk extrapolation" (ICML 2021), with clients as environments.
The paper asks every environment; taking the variance over a cohort is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wafl.base.options import NotNegative, Tunable
from wafl.parts.client_weights import ClientWeights
from wafl.weights.fixed import ByExamples
from wafl.weights.reweighting.base import Reweighted


@dataclass(frozen=True)
class RiskVariance(Reweighted):
    """Descend ``sum_i center_i loss_i + beta sum_i center_i (loss_i - mean)^2``.

    Its gradient has the weights ``center_i (1 + 2 beta (loss_i - mean))``. A weight below 0, with which a client would
    unlearn what it knows, is cut off at 0; the paper's larger betas may have some.

    Args:
        beta: the price of the variance; 0 keeps the center.
        center: the weights before losses count.
    """

    beta: Annotated[float, NotNegative, Tunable(30.0), "The price of the variance of the clients' losses."] = 1.0

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        weights = center * (1.0 + 2.0 * self.beta * (losses - center @ losses)).clamp_min(0.0)
        return weights / weights.sum()


def rex(beta: float = 1.0, center: ClientWeights | None = None) -> RiskVariance:
    """V-REx: weights ``center_i (1 + 2 beta (loss_i - mean))``, cut off at 0 and scaled to sum to 1.

    Args:
        beta: the price of the variance of the clients' losses; 0 keeps the center.
        center: the weights before losses count; by default each client's share of the examples.
    """
    return RiskVariance(beta, center=center or ByExamples())
