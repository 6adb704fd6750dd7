"""The l2 ascent of a linear model within bounds."""

from collections.abc import Callable

import torch
from torch import Tensor

from wafl.base.bounds import Box
from wafl.objectives.ball.ascent import close, settling
from wafl.objectives.ball.class_space import ClassSpace
from wafl.objectives.base import Move
from wafl.objectives.capture import check_inside, everywhere
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.tasks.products import product

LARGEST_RATIO = 0.8
"""The slowest convergence that is extrapolated; beyond it, an example has hardly begun to converge."""


class BoxSpace(ClassSpace):
    """The ascent for a convex loss and the squared l2 cost, where moves stay in a box.

    The whole step of the iteration, ``v <- dloss(W clip(x + W^T v / 2 gamma) + b)``, never descends, as without
    bounds; but the clipped inputs have to be written. So it starts from the solution without bounds, which stays if it
    lies inside the box, and every second step is extrapolated (Aitken).
    """

    def __init__(self, problem: Problem, x: Inputs, y: Tensor, gamma: Tensor, bounds: Box) -> None:
        super().__init__(problem, x, y, gamma)
        assert problem.linear is not None
        self.bounds, self.bias = bounds, problem.linear[1]
        self.shape, self.flat = x.base.shape[2:], x.dense().flatten(2)
        check_inside(x.base, bounds)

    def moved(self, move: Tensor) -> Tensor:
        """The examples ``[L, B, D]`` at a point minus the origin."""
        return torch.baddbmm(self.flat, (move * self.half_price[:, None, None]).mT, self.weight).clamp_(*self.bounds)

    def boxed_outputs(self, moved: Tensor) -> Tensor:
        return product(self.weight, moved, self.bias[..., None])

    def boxed_aim_at(self, point: Tensor) -> Tensor:
        return self.slope(self.boxed_outputs(self.moved(point - self.origin)))

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        free = self.climb(start, steps, tolerance)[0].point
        free = torch.where(free.isfinite(), free, self.origin)
        point, converged = accelerate(self.boxed_aim_at, self.length, free, self.origin, steps, tolerance)
        moved = self.moved(point - self.origin)
        outputs = self.boxed_outputs(moved)
        squared = torch.linalg.vector_norm(moved - self.flat, dim=-1).square()
        value = self.loss.value(outputs.mT, self.y) - self.gamma[:, None] * squared
        at_rest = self.loss.value(self.at_rest.mT, self.y)
        climbed = value >= at_rest
        if not everywhere(climbed):  # rounding, or a maximum without bounds that is none within them
            moved = torch.where(climbed[..., None], moved, self.flat)
            outputs = torch.where(climbed[:, None], outputs, self.at_rest)
        inputs = Inputs(moved.unflatten(-1, self.shape), len(moved), outputs=outputs)
        return Move(inputs, self.y, torch.maximum(value, at_rest), torch.where(climbed, squared, 0.0), converged)


def accelerate(
    aim_at: Callable[[Tensor], Tensor],
    length: Callable[[Tensor], Tensor],
    start: Tensor,
    origin: Tensor,
    steps: int,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Iterate ``[L, C, B]`` with full steps, every second one extrapolated: the last point, and whether it settled."""
    enough = settling(tolerance, start)
    point, last = start, torch.full_like(start, torch.inf)
    settled = torch.zeros_like(start[:, 0], dtype=torch.bool)
    for turn in range(steps):
        aim = aim_at(point)
        step = aim - point
        arrived = close(length(step), enough, length(aim - origin)) if tolerance > 0 or turn == steps - 1 else settled
        ahead = aim
        if turn % 2:
            ratio = ((last * step).sum(1) / last.square().sum(1)).nan_to_num(0.0).clamp(0.0, LARGEST_RATIO)
            ahead = torch.addcmul(aim, step, (ratio / (1.0 - ratio))[:, None])
        point = torch.where(settled[:, None], point, ahead)
        last, settled = step, settled | arrived
        if everywhere(settled):
            break
    return point, settled
