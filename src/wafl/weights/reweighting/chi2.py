"""Chi-squared: weights that grow linearly with the losses, within a ball.

Namkoong and Duchi, "Stochastic gradient methods for distributionally robust optimization with f-divergences" (NIPS
2016). The paper finds the weights of examples by sampling; here clients report their losses, and the weights are exact.
Weighing a cohort that is not everyone by its own losses is ours.
"""

from typing import Annotated

from torch import Tensor

from wafl.base.options import NotNegative, Tunable, frozen, maker
from wafl.weights.reweighting.base import Reweighted
from wafl.weights.reweighting.divergence import leaning


@frozen
class Chi2(Reweighted):
    """Chi-squared: weights ``center_i max(loss_i - eta, 0)``, scaled to sum to 1, at a distance from the center.

    They maximize ``sum_i lambda_i loss_i`` over ``1/2 sum_i (lambda_i - center_i)^2 / center_i <= radius``. As long as
    no client loses all its weight, what is descended is the mean loss plus ``sqrt(2 radius)`` standard deviations.
    """

    radius: Annotated[float, NotNegative, Tunable(), "How far weights may be from the center; 0 keeps the center."] = (
        0.5
    )

    def weigh(self, center: Tensor, losses: Tensor) -> Tensor:
        gaps = losses.max() - losses
        if not bool((gaps > 0).any()):
            return center

        def lean(t: float) -> Tensor:
            weights = center * (1.0 - t * gaps).clamp_min(0.0)
            return weights / weights.sum()

        def divergence(t: float) -> float:
            return 0.5 * float(((lean(t) - center).square() / center).sum())

        return leaning(lean, divergence, self.radius, 1.0 / float(gaps[gaps > 0].min()))


chi2 = maker(Chi2)
