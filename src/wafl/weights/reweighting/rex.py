"""V-REx over clients: the mean of the losses plus a multiple of their variance.

Krueger et al., "Out-of-distribution generalization via risk extrapolation" (ICML 2021), with clients as environments.
The paper asks every environment; taking the variance over a cohort is ours.
"""

from typing import Annotated

from torch import Tensor

from wafl.base.options import NotNegative, Tunable, frozen, maker
from wafl.weights.reweighting.base import Reweighted


@frozen
class RiskVariance(Reweighted):
    """V-REx: weights ``center_i (1 + 2 beta (loss_i - mean))``, cut off at 0 and scaled to sum to 1.

    They are those of the gradient of ``sum_i center_i loss_i + beta sum_i center_i (loss_i - mean)^2``. A weight below
    0, with which a client would unlearn what it knows, is cut off at 0; the paper's larger betas may have some.
    """

    beta: Annotated[
        float, NotNegative, Tunable(30.0), "The price of the variance of the clients' losses; 0 keeps the center."
    ] = 1.0

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        weights = center * (1.0 + 2.0 * self.beta * (losses - center @ losses)).clamp_min(0.0)
        return weights / weights.sum()


rex = maker(RiskVariance)
