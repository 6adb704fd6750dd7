"""The l2 ascent of a linear model, in as many dimensions as it has outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from wafl.adversaries.ascent import backtrack, climb
from wafl.adversaries.base import Move
from wafl.core.inputs import Inputs
from wafl.core.task import Problem


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
        self.gram = torch.bmm(self.weight, self.weight.mT) * self.half_price[:, None, None]
        self.base = torch.baddbmm(self.at_rest, self.gram, self.origin, alpha=-1.0)

    def class_starts(self) -> list[Tensor]:
        """Where the linear pieces ``s_k - s_y`` of a loss with probabilities aim: the corners of the simplex."""
        if self.probabilities is None:
            return []
        return [corner[None, :, None].expand_as(self.origin) for corner in torch.eye(self.features).to(self.origin)]

    def random_start(self, draw: Tensor) -> Tensor:
        return self.origin + draw.mT

    def aim_at(self, point: Tensor) -> Tensor:
        return self.slope(torch.baddbmm(self.base, self.gram, point))

    def slope(self, outputs: Tensor) -> Tensor:
        """The point that these outputs aim at: the gradient of the loss there, plus the origin."""
        if self.probabilities is not None:
            return self.probabilities(outputs.mT).mT
        return self.loss.gradient(outputs.mT, self.y).mT

    def outputs(self, move: Tensor) -> Tensor:
        """The outputs at a point minus the origin; ``base`` would lose digits to a tiny gamma."""
        return torch.baddbmm(self.at_rest, self.gram, move)

    def squared(self, move: Tensor) -> Tensor:
        """``u^T G u`` for the difference of two points."""
        return (torch.bmm(self.gram, move) * move).sum(1).clamp_min(0.0) * self.half_price[:, None]

    def length(self, move: Tensor) -> Tensor:
        return self.squared(move).sqrt()

    def value(self, move: Tensor) -> Tensor:
        return self.loss.value(self.outputs(move).mT, self.y) - self.gamma[:, None] * self.squared(move)

    def climb(self, start: Tensor | None, steps: int, tolerance: float) -> tuple[Tensor, Tensor]:
        """Where the iteration ends, and whether it has settled there."""
        start = self.origin if start is None else start
        if self.loss.convex:
            return climb(self.aim_at, self.length, start, self.origin, steps, tolerance, 1)
        ascent = backtrack(
            lambda point: (self.value(point - self.origin), point),
            self.aim_at,
            self.length,
            start,
            self.origin,
            steps,
            tolerance,
            1,
        )
        return ascent.point, ascent.converged

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        point, converged = self.climb(start, steps, tolerance)
        value, at_rest = self.value(point - self.origin), self.loss.value(self.at_rest.mT, self.y)
        climbed = (value >= at_rest)[:, None]  # always, except for rounding
        move = torch.where(climbed, point - self.origin, 0.0)
        inputs = self.x.shifted(self.weight, move * self.half_price[:, None, None], self.outputs(move))
        return Move(inputs, self.y, torch.maximum(value, at_rest), self.squared(move), converged)
