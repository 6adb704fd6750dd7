"""Compute the loss that a network reaches inside a ball: a lower bound on the worst loss.

Every example is moved to a few distances along the slope at an earlier one. By duality, a gamma then picks the best
distance of each example, and the gamma at which the mean cost is the squared radius gives the worst distribution of
these moves. All radii share the moves, which cost one pass through the network per distance. Only every second pass
goes backward, for a new slope.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wafl.base.norms import power_norm, steepest
from wafl.tasks.problem import Problem
from wafl.theory.certificates.mixture import Means, Mixture
from wafl.theory.certificates.quantities import search_dual
from wafl.theory.certificates.slack import at_once

NEAREST, FARTHEST, FACTOR = 0.7, 2.5, 1.5
"""The distances: from this share of the smallest radius to this multiple of the largest, and the ratio of neighbors."""
PIECE = 128
"""The number of examples that are moved together."""


def worst_moves(mixture: Mixture, radii: Sequence[float], norm: float) -> list[float]:
    """Return the expected loss of a distribution within each of some positive radii of the mixture."""
    population, problem = mixture.population(), mixture.problem
    first, last = NEAREST * min(radii), FARTHEST * max(radii)
    distances = [first * FACTOR**step for step in range(1 + math.ceil(math.log(last / first, FACTOR)))]
    size = min(PIECE, at_once(mixture.task, population.x[0]))
    pieces = zip(population.x.split(size, dim=1), population.y.split(size, dim=1), strict=True)
    losses, costs = torch.cat([_moved(problem, x, y, distances, norm) for x, y in pieces], dim=-1)
    share = population.shares()

    def ask(gammas: Sequence[float]) -> Means:
        means = Means([], [])
        for gamma in gammas:
            value, index = (losses - gamma * costs).max(0)
            means.value.append(float(share @ value))
            means.cost.append(float(share @ costs.gather(0, index[None])[0]))
        return means

    dual = search_dual(ask, radii, 0.0)
    return [dual.reached(radius) for radius in radii]


def _moved(problem: Problem, x: Tensor, y: Tensor, distances: Sequence[float], norm: float) -> Tensor:
    """Return losses and squared distances of ``x [1, B, ...]`` at rest and after each move, ``[2, moves, B]``."""
    loss, slope = problem.loss_and_gradient(x, y)
    moves = [torch.stack([loss[0], torch.zeros_like(loss[0])])]
    for number, distance in enumerate(distances, 1):
        moved = x + (distance * steepest(slope.flatten(2), norm)).view_as(x)
        forward = number % 2 == 0 or number == len(distances)
        loss, slope = (problem.loss(moved, y), slope) if forward else problem.loss_and_gradient(moved, y)
        # A NaN loss was not reached. The cost is measured because a direction may have lost its length of 1.
        reached = torch.where(loss.isfinite(), loss, -torch.inf)
        moves.append(torch.cat([reached, power_norm((moved - x).flatten(2), norm, 2)]))
    return torch.stack(moves, dim=1).detach()
