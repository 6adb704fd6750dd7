"""Compute the l2 ascent of a linear model, in a space with one dimension per output, with or without a box.

For a convex loss the full step of the fixed-point iteration never lowers the objective, but near the concavity limit it
converges slowly. Each step is then about ``ratio`` times the previous step, so all remaining steps add up to ``ratio /
(1 - ratio)`` times the last one. They are taken at once, example by example (Aitken, "On Bernoulli's numerical solution
of algebraic equations", 1926).
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from wafl.base.bounds import Box
from wafl.objectives.ball.ascent import backtrack, close, not_lower, settling
from wafl.objectives.base import Move
from wafl.objectives.capture import check_inside, everywhere
from wafl.tasks.gpu.kernels import kernels
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.tasks.products import product

TURN = 4
"""The number of full steps between two extrapolations; the first steps settle all but the slowest direction."""
LARGEST_RATIO = 0.98
"""The slowest convergence that is extrapolated in full."""
LARGEST_BOXED_RATIO = 0.8
"""The slowest convergence within a box that is extrapolated; above it, convergence has hardly begun."""


@dataclass(frozen=True)
class Spot:
    """A point ``[L, C, B]``, its target, its objective ``[L, B]``, its squared distance and its outputs."""

    point: Tensor
    aim: Tensor
    value: Tensor
    squared: Tensor
    outputs: Tensor


class ClassSpace:
    """The space of a linear model's outputs, in which every iterate is ``x + W^T u``.

    With ``G = W W^T`` and ``s = W x + b``, outputs are ``s + G u``, the squared distance is ``u^T G u``, and the
    fixed-point iteration is ``v <- dloss(s + G u)`` for ``v = 2 gamma u``.

    Points are ``v + e``, of shape ``[L, C, B]`` (examples last: a softmax along a short last dimension is slow). If the
    gradient is ``p - e_y``, with p the probabilities of a loss such as the cross-entropy, the origin e is ``e_y``. Then
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
        """The outputs at point 0, where full steps start."""
        return torch.baddbmm(self.at_rest, self.gram, self.origin, alpha=-1.0)

    def class_starts(self) -> list[Tensor]:
        """Return the targets of a loss's linear pieces ``s_k - s_y``: the corners of the simplex."""
        if self.probabilities is None:
            return []
        corners = torch.eye(self.features, dtype=self.origin.dtype, device=self.origin.device)
        return [corner[None, :, None].expand_as(self.origin) for corner in corners]

    def random_start(self, draw: Tensor) -> Tensor:
        """Return the start at a random displacement from the origin."""
        return self.origin + draw.mT

    def aim_at(self, point: Tensor) -> Tensor:
        """Return the target of a full step from the point."""
        return self.slope(torch.baddbmm(self.base, self.gram, point))

    def slope(self, outputs: Tensor) -> Tensor:
        """Return the target of a full step with these outputs: the gradient of the loss plus the origin."""
        if self.probabilities is not None:
            return self.probabilities(outputs.mT).mT
        return self.loss.gradient(outputs.mT, self.y).mT

    def squared(self, move: Tensor) -> Tensor:
        """Return ``u^T G u`` for the difference of two points."""
        return self._squared(torch.bmm(self.gram, move), move)

    def _squared(self, change: Tensor, move: Tensor) -> Tensor:
        return (change * move).sum(1).clamp_min_(0.0) * self.half_price[:, None]

    def length(self, move: Tensor) -> Tensor:
        """Return the length of a move."""
        return self.squared(move).sqrt()

    def evaluate(self, point: Tensor) -> Spot:
        """Return the spot of a point; outputs from ``base`` would lose digits at a tiny gamma."""
        move = point - self.origin
        change = torch.bmm(self.gram, move)
        outputs, squared = self.at_rest + change, self._squared(change, move)
        value = torch.addcmul(self.loss.value(outputs.mT, self.y), self.gamma[:, None], squared, value=-1.0)
        return Spot(point, self.slope(outputs), value, squared, outputs)

    @cached_property
    def rest(self) -> Spot:
        """The spot at the origin."""
        return self.evaluate(self.origin)

    def climb(self, start: Tensor | None, steps: int, tolerance: float) -> tuple[Spot, Tensor]:
        """Return the last spot of the iteration, and whether each example has converged."""
        if not self.loss.convex:
            return self._backtrack(self.origin if start is None else start, steps, tolerance)
        begin = self.rest if start is None else self.evaluate(start)
        if tolerance > 0:
            return self._accelerate(begin, steps, tolerance)
        last = self.evaluate(self._full_steps(begin.aim, steps - 1))
        return last, close(
            self.length(last.aim - last.point), settling(0.0, last.point), self.length(last.aim - self.origin)
        )

    def _accelerate(self, at: Spot, steps: int, tolerance: float) -> tuple[Spot, Tensor]:
        """Take at most ``steps`` full steps, extrapolated after every ``TURN`` of them."""
        while True:
            settled = self.squared(at.aim - at.point) <= tolerance**2 * at.squared
            if steps <= 0 or everywhere(settled):
                return at, settled
            path = [at.aim]
            while len(path) < min(steps, TURN):
                path.append(self.aim_at(path[-1]))
            steps -= len(path)
            ahead = _extrapolated(path) if len(path) == TURN else path[-1]
            at = self._climbed(at, torch.where(settled[:, None], at.point, ahead), path[-1])

    def _climbed(self, at: Spot, ahead: Tensor, full: Tensor) -> Spot:
        """Return the spot ahead; for an example that is lower there, the spot after its full steps."""
        trial = self.evaluate(ahead)
        climbs = not_lower(trial.value, at.value)
        if everywhere(climbs):
            return trial
        trial = self.evaluate(torch.where(climbs[:, None], ahead, full))
        # If the supremum is infinite, an example stays where further steps would overflow.
        finite = torch.isfinite(trial.value)

        def pick(name: str) -> Tensor:
            new, old = getattr(trial, name), getattr(at, name)
            return torch.where(finite if new.ndim == 2 else finite[:, None], new, old)

        return Spot(*(pick(field.name) for field in fields(Spot)))

    def _full_steps(self, point: Tensor, steps: int) -> Tensor:
        """Take full steps, which never lower the objective; stop after a step that changes no bit."""
        if self.probabilities is not None and (climb := _one_kernel(point)) is not None:
            return climb(self.base, self.gram, point, steps)
        for step in range(steps):
            aim = self.aim_at(point)
            if step % 4 == 3 and point.device.type == "cpu" and torch.equal(aim, point):
                break
            point = aim
        return point

    def _backtrack(self, start: Tensor, steps: int, tolerance: float) -> tuple[Spot, Tensor]:
        def valued(point: Tensor) -> tuple[Tensor, Tensor]:
            return self.evaluate(point).value, point

        point, _, settled = backtrack(valued, self.aim_at, self.length, start, self.origin, steps, tolerance, 1)
        return self.evaluate(point), settled

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        """Return the move of the best spot; an example moves only if its objective rises."""
        (at, converged), rest = self.climb(start, steps, tolerance), self.rest
        climbed = at.value >= rest.value  # always, except for rounding
        fell = ~climbed
        move = (at.point - self.origin).masked_fill_(fell[:, None], 0.0)
        outputs = torch.where(climbed[:, None], at.outputs, rest.outputs)
        squared = at.squared.masked_fill(fell, 0.0)
        inputs = self.x.shifted(self.weight, move * self.half_price[:, None, None], outputs)
        return Move(inputs, self.y, torch.maximum(at.value, rest.value), squared, converged)


def _one_kernel(point: Tensor) -> Callable[[Tensor, Tensor, Tensor, int], Tensor] | None:
    """Return the kernel that takes all steps of a softmax at once, or None if there is none."""
    if point.device.type != "cuda" or point.dtype != torch.float32:
        return None
    kernel = kernels("wafl.objectives.ball.one_kernel")
    return kernel.softmax_steps if kernel is not None and point.shape[1] <= kernel.MOST_CLASSES else None


def _extrapolated(path: list[Tensor]) -> Tensor:
    """Return the limit of the path's last three points; where it does not converge, its last point."""
    before, last = path[-2] - path[-3], path[-1] - path[-2]
    ratio = (last * before).sum(1) / before.square().sum(1)
    ratio = torch.where(ratio < 1.0, ratio, 0.0).clamp_(0.0, LARGEST_RATIO)  # steps that grow lead away from it
    return torch.addcmul(path[-1], last, (ratio / (1.0 - ratio))[:, None])


class BoxSpace(ClassSpace):
    """The space of the ascent for a convex loss and the squared l2 cost, where moves stay in a box.

    The full step of the iteration, ``v <- dloss(W clip(x + W^T v / 2 gamma) + b)``, never lowers the objective, as
    without bounds. But it must write the clipped inputs. The iteration therefore starts at the solution without bounds,
    which is final if it lies inside the box. Every second step is extrapolated (Aitken).
    """

    def __init__(self, problem: Problem, x: Inputs, y: Tensor, gamma: Tensor, bounds: Box) -> None:
        super().__init__(problem, x, y, gamma)
        assert problem.linear is not None
        self.bounds, self.bias = bounds, problem.linear[1]
        self.shape, self.flat = x.base.shape[2:], x.dense().flatten(2)
        check_inside(x.base, bounds)

    def moved(self, move: Tensor) -> Tensor:
        """Return the examples ``[L, B, D]`` after a move in the class space, clipped to the box."""
        return torch.baddbmm(self.flat, (move * self.half_price[:, None, None]).mT, self.weight).clamp_(*self.bounds)

    def boxed_outputs(self, moved: Tensor) -> Tensor:
        """Return the outputs of moved examples."""
        return product(self.weight, moved, self.bias[..., None])

    def ascend(self, start: Tensor | None, steps: int, tolerance: float) -> Move:
        """Return the best move within the box; an example moves only if its objective rises."""
        free = self.climb(start, steps, tolerance)[0].point
        free = torch.where(free.isfinite(), free, self.origin)
        point, converged = self._climb_boxed(free, steps, tolerance)
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

    def _climb_boxed(self, point: Tensor, steps: int, tolerance: float) -> tuple[Tensor, Tensor]:
        """Take full steps, every second one extrapolated; return the last point and which examples converged."""
        enough = settling(tolerance, point)
        last, settled = torch.full_like(point, torch.inf), torch.zeros_like(point[:, 0], dtype=torch.bool)
        for turn in range(steps):
            aim = self.slope(self.boxed_outputs(self.moved(point - self.origin)))
            step = aim - point
            arrived = settled
            if tolerance > 0 or turn == steps - 1:
                arrived = close(self.length(step), enough, self.length(aim - self.origin))
            ahead = aim
            if turn % 2:
                ratio = (last * step).sum(1) / last.square().sum(1)
                ratio = ratio.nan_to_num(0.0).clamp(0.0, LARGEST_BOXED_RATIO)
                ahead = torch.addcmul(aim, step, (ratio / (1.0 - ratio))[:, None])
            point = torch.where(settled[:, None], point, ahead)
            last, settled = step, settled | arrived
            if everywhere(settled):
                break
        return point, settled
