"""Define methods that train on randomly changed examples."""

from wafl.methods.preset import Served, Stepped, Weighted, preset
from wafl.objectives import Mixed, RandomMoves


@preset(
    'Bishop, "Training with noise is equivalent to Tikhonov regularization", Neural Computation 1995, on every client',
    r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{z \sim P_i} \, \mathbb{E}_{n \sim N(0, I)} \Big[ \ell \Big( \theta, "
    r"\Big( x + \frac{\rho}{\sqrt D} A n, y \Big) \Big) \Big]",
    "As the control for every ball: moves of the same shape and size, at random instead of against the model. With the "
    "shifts of `wafl.shifts` (in Python) it is data augmentation.",
)
class Moved(RandomMoves, Weighted, Served, Stepped):
    """FedAvg on randomly moved examples (see :class:`wafl.objectives.RandomMoves`)."""


@preset(
    'Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018, on every client',
    r"\min_\theta \sum_i \lambda_i \, \mathbb{E}_{z, z' \sim P_i} \, \mathbb{E}_{t \sim \mathrm{Beta}(\alpha, \alpha)} "
    r"\Big[ t \, \ell(\theta, (m, y)) + (1 - t) \, \ell(\theta, (m, y')) \Big], \qquad m = t x + (1 - t) x'",
    "If networks are too confident between training examples, and mixtures of examples are meaningful.",
)
class Mixup(Mixed, Weighted, Served, Stepped):
    """FedAvg on mixtures of two examples of a client's batch (see :class:`wafl.objectives.Mixed`)."""
