"""Count the scores of a client that may be above a threshold after its examples move.

Let d(z, t) be the distance from example z to the region where its score exceeds t. For a linear model it is exact: the
margin of class j is ``t - A_j`` below t, and rises by at most ``||w_j - w_y||_*`` per unit of distance. For networks
with proven slopes it is a lower bound. Rounding is included as in certificates.

**The client's own examples.** By duality, the largest share of scores above t in the ball of W_p with this radius is

    min over gamma of  gamma radius^p + mean_i max(0, 1 - gamma d(z_i, t)^p),

which is attained by moving the nearest examples first, while the budget ``n radius^p`` lasts.

**The next example of the next client.** This share is concave in the distribution, so its mean over a few examples is
too small. With gamma fixed in advance, ``gamma radius^p + mean_i max(0, 1 - gamma d(z_i, t)^p)`` is a mean, and bounds
the share at every gamma.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.errors import PreconditionError
from wafl.base.norms import dual, power_norm
from wafl.base.options import Choice, Norm, Positive, frozen
from wafl.sets.scores import Score
from wafl.tasks.problem import Problem
from wafl.theory.certificates.slack import TERMS, rounding_loss
from wafl.theory.certificates.upper import ErrorSurrogate
from wafl.theory.constants.layer_by_layer import last_layer, why_unproven
from wafl.theory.networks.rounding import rounding_of
from wafl.theory.phi.incumbents import Ball

LOSSY = 8.0 * TERMS * 2.0**-53
"""An upper bound on the relative rounding of a distance and of a margin in float64."""
Distances = Callable[[float], Tensor]
"""A function from a threshold t to d(z, t) of each example, ``[n]``."""


@frozen
class Shift:
    """A Wasserstein ball around a client's examples."""

    radius: Annotated[float, Positive(), "How far the examples move: the root mean square distance, or the mean."]
    norm: Annotated[float, Norm, "The ground norm."] = 2
    power: Annotated[int, Choice((1, 2)), "The order p of W_p."] = 2
    gamma: Annotated[float | None, Positive(), "The price of distance; None to find the worst one for each client."] = (
        None
    )

    @property
    def spent(self) -> float:
        """``gamma radius^p``, a share of examples; 0 if gamma is not fixed."""
        return 0.0 if self.gamma is None else self.gamma * self.radius**self.power

    def count(self, distance: Tensor) -> float:
        """Return an upper bound on the number of scores above the threshold, given their distances."""
        cost = distance.pow(self.power)
        if self.gamma is not None:
            return float((1.0 - self.gamma * cost).clamp_min(0.0).sum())
        cost, budget = cost.sort().values, len(cost) * self.radius**self.power * (1.0 + 1e-9)
        spent = cost.cumsum(0)
        moved = int((spent <= budget).sum())
        if moved == len(cost):
            return float(moved)
        left = budget - (float(spent[moved - 1]) if moved else 0.0)
        return moved + left / float(cost[moved])


def check_moves(problem: Problem, score: Score) -> None:
    """Raise PreconditionError if no distances are known for this model and score."""
    if not score.moves:
        raise PreconditionError(f"score={score.name!r} has no radius: use 'margin', or 'residual' for a regression")
    known = last_layer(problem.task.module) is not None and rounding_of(problem.task, problem.params[0]) is not None
    if problem.linear is None and not known:
        raise PreconditionError(
            f"a radius needs a model with proven slopes, and this one has none: {why_unproven(problem.task)}; use "
            "radius=0, or a model such as wafl.models.lipschitz(clients)"
        )


def distances_of(problem: Problem, score: Score, x: Tensor, y: Tensor, outputs: Tensor, norm: float) -> Distances:
    """Return the distances of the examples ``x [n, ...]`` with these labels and outputs."""
    if score.of_classes and problem.linear is None:
        return partial(ErrorSurrogate(norm).distances, problem, x, y)
    lost, drift = rounding_loss("float64", problem, x), 0.0
    if (rounding := rounding_of(problem.task, problem.params[0])) is not None:
        drift = float(rounding.growth(x.shape[1:], norm, "float64", outputs).max())
    lost = lost + LOSSY * outputs.abs().amax(-1, keepdim=True)
    if score.of_classes:
        assert problem.linear is not None
        label = y[:, None]
        below = outputs.gather(-1, label) - outputs - lost - lost.gather(-1, label)
        below = below.scatter(-1, label, math.inf)  # the label is not its own rival
        slope = Ball(problem.linear[0][0], norm).distances[y] + 2.0 * drift
    else:
        steep, jump = _slope(problem, norm, x[0].numel())
        below = -(score.of(outputs, y)[:, None] * (1.0 + LOSSY) + lost + jump)
        slope = torch.full_like(below, steep + drift)

    def distances(threshold: float) -> Tensor:
        lead = below + threshold - LOSSY * abs(threshold)
        return torch.where(lead <= 0.0, 0.0, lead / slope).amin(-1) * (1.0 - LOSSY)

    return distances


def _slope(problem: Problem, norm: float, features: int) -> tuple[float, float]:
    """Return the Lipschitz constant of a model's only output, and the bound of its additional jumps."""
    if problem.linear is not None:
        return float(power_norm(problem.linear[0][0], dual(norm), 1)), 0.0
    layers = last_layer(problem.task.module)
    assert layers is not None
    weight, before = layers
    stretch = math.sqrt(features) if dual(norm) == 1 else 1.0
    return float(weight.norm()) * before.slope * stretch, 2.0 * before.jump * float(weight.abs().sum())
