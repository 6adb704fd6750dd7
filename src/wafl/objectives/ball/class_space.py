"""The l2 ascent of a linear model, in as many dimensions as it has outputs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wafl.objectives.ball.accelerated import Spot, accelerate
from wafl.objectives.ball.ascent import backtrack, close, settling
from wafl.objectives.base import Move
from wafl.tasks.gpu.kernels import kernels
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.tasks.products import product


@dataclass(frozen=True)
class Reached(Spot):
    """A spot with the outputs there ``[L, C, B]``."""

    outputs: Tensor


class ClassSpace:
    """Every iterate is ``x + W^T u``. With ``G = W W^T`` and ``s = W x + b``, outputs are ``s + G u``, the squared
    distance is ``u^T G u``, and the fixed-point iteration is ``v <- dloss(s + G u)`` for ``v = 2 gamma u``.

    Points are ``v + e``, of shape ``[L, C, B]`` (examples last: a softmax along a short last dimension is slow). If the
    gradient is ``p - e_y``, with p the probabilities of a loss such as the cross-entropy, the origin e is ``e_y``: then
    a point is a probability vector, and the iteration is ``p <- softmax(s + G (p - e_y) / 2 gamma)``. Otherwise e is 0.
    """

    def __init__(self, problem: Problem, x: Inputs, y: Tensor, gamma: Tensor) -> None:
        assert problem.linear is not None
        self.loss, self.probabilities = problem.output_loss, problem.output_loss.probabilities
        self.x, self.y, self.gamma = x, y, gamma
        self.weight = problem.linear[0]
        self.at_rest = problem.outputs(x).mT
        self.features = self.at_rest.shape[1]
        self.origin = torch.zeros_like(self.at_rest)
        if self.probabilities is not None:
            self.origin.scatter_(1, y[:, None], 1.0)
        self.half_price = 0.5 / gamma
        self.gram = product(self.weight, self.weight) * self.half_price[:, None, None]

    @cached_property
    def base(self) -> Tensor:
        """The outputs at point 0, from which full steps go."""
        return torch.baddbmm(self.at_rest, self.gram, self.origin, alpha=-1.0)

    def class_starts(self) -> list[Tensor]:
        """Where the linear pieces ``s_k - s_y`` of a loss with probabilities aim: the corners of the simplex."""
        if self.probabilities is None:
            return []
        corners = torch.eye(self.features, dtype=self.origin.dtype, device=self.origin.device)
        return [corner[None, :, None].expand_as(self.origin) for corner in corners]

    def random_start(self, draw: Tensor) -> Tensor:
        return self.origin + draw.mT

    def aim_at(self, point: Tensor) -> Tensor:
        return self.slope(torch.baddbmm(self.base, self.gram, point))

    def slope(self, outputs: Tensor) -> Tensor:
        """The point that these outputs aim at: the gradient of the loss there, plus the origin."""
        if self.probabilities is not None:
            return self.probabilities(outputs.mT).mT
        return self.loss.gradient(outputs.mT, self.y).mT

    def squared(self, move: Tensor) -> Tensor:
        """``u^T G u`` for the difference of two points."""
        return self._squared(torch.bmm(self.gram, move), move)

    def _squared(self, change: Tensor, move: Tensor) -> Tensor:
        return (change * move).sum(1).clamp_min_(0.0) * self.half_price[:, None]

    def length(self, move: Tensor) -> Tensor:
        return self.squared(move).sqrt()

    def evaluate(self, point: Tensor) -> Reached:
        """All about a point; from ``base``, outputs would lose digits to a tiny gamma."""
        move = point - self.origin
        change = torch.bmm(self.gram, move)
        outputs, squared = self.at_rest + change, self._squared(change, move)
        value = torch.addcmul(self.loss.value(outputs.mT, self.y), self.gamma[:, None], squared, value=-1.0)
        return Reached(point, self.slope(outputs), value, squared, outputs)

    @cached_property
    def rest(self) -> Reached:
        return self.evaluate(self.origin)

    def climb(self, start: Tensor | None, steps: int, tolerance: float) -> tuple[Reached, Tensor]:
        """Where the iteration ends, and whether it has settled there."""
        if not self.loss.convex:
            return self._backtrack(self.origin if start is None else start, steps, tolerance)
        begin = self.rest if start is None else self.evaluate(start)
        if tolerance > 0:
            return accelerate(self.evaluate, self.aim_at, self.squared, begin, steps, tolerance)
        last = self.evaluate(self._full_steps(begin.aim, steps - 1))
        return last, close(
            self.length(last.aim - last.point), settling(0.0, last.point), self.length(last.aim - self.origin)
        )

    def _full_steps(self, point: Tensor, steps: int) -> Tensor:
        """Full steps, which never descend; after one that changes no bit, the others would not either."""
        if self.probabilities is not None and (climb := _one_kernel(point)) is not None:
            return climb(self.base, self.gram, point, steps)
        for step in range(steps):
            aim = self.aim_at(point)
            if step % 4 == 3 and point.device.type == "cpu" and torch.equal(aim, point):
                break
            point = aim
        return point

    def _backtrack(self, start: Tensor, steps: int, tolerance: float) -> tuple[Reached, Tensor]:
        def valued(point: Tensor) -> tuple[Tensor, Tensor]:
            return self.evaluate(point).value, point

        ascent = backtrack(valued, self.aim_at, self.length, start, self.origin, steps, tolerance, 1)
        return self.evaluate(ascent.point), ascent.converged

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        (at, converged), rest = self.climb(start, steps, tolerance), self.rest
        climbed = at.value >= rest.value  # always, except for rounding
        fell = ~climbed
        move = (at.point - self.origin).masked_fill_(fell[:, None], 0.0)
        outputs = torch.where(climbed[:, None], at.outputs, rest.outputs)
        squared = at.squared.masked_fill(fell, 0.0)
        inputs = self.x.shifted(self.weight, move * self.half_price[:, None, None], outputs)
        return Move(inputs, self.y, torch.maximum(at.value, rest.value), squared, converged)


def _one_kernel(point: Tensor) -> Callable[[Tensor, Tensor, Tensor, int], Tensor] | None:
    """All steps of a softmax in one kernel, where there is one."""
    if point.device.type != "cuda" or point.dtype != torch.float32:
        return None
    kernel = kernels("wafl.objectives.ball.one_kernel")
    return kernel.softmax_steps if kernel is not None and point.shape[1] <= kernel.MOST_CLASSES else None
