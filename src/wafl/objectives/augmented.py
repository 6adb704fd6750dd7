"""Train on examples that are changed at random, independently of the model: random moves, and mixup.

Random moves are a control for every ball: they move examples as a ball does, but at random, not against the model. For
small noise they penalize the slope of the model (Bishop, "Training with noise is equivalent to Tikhonov
regularization", Neural Computation 1995).

Mixup trains on mixtures of two examples of a batch (Zhang, Cissé, Dauphin and Lopez-Paz, "mixup: Beyond empirical risk
minimization", ICLR 2018). As in the authors' code, each example is mixed with another example of its batch, and one
weight is drawn per batch.
"""

import math
from dataclasses import replace
from functools import reduce
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from wafl.base.bounds import DATA, Bounds, check_bounds
from wafl.base.bounds import Box as Region
from wafl.base.mover import Mover
from wafl.base.options import Box, Matrix, Positive, Tunable, frozen, maker
from wafl.base.random import Key, Purpose, bits, normal, permutation, uniform
from wafl.objectives.ball.cost_matrix import CostMatrix, check_cost_matrix
from wafl.objectives.base import Move, Objective, ObjectiveState, Term, example_draws, lane_key, lane_scalar
from wafl.tasks.inputs import Inputs, dense, shared
from wafl.tasks.problem import Problem


@frozen
class RandomMoves(Objective):
    """Move each example at random in every step: by a shift, by Gaussian noise, or by both in turn.

    With several shifts, each example gets one of them with equal probability; severity 0 does not move it. A shift's
    draws for single examples are new in every step. Its draws for all examples together, such as the linear map of an
    affine shift, always use seed 0. The noise is ``noise A n / sqrt(D)``, with n standard normal, D the number of
    features and A the cost matrix. A move d costs ``||A^-1 d||^2 = noise^2`` on average, as much as in a ball of radius
    ``noise``, unless the bounds of the data stop it.

    >>> moved(noise=0.5).noise
    0.5
    """

    shifts: Annotated[Any, "A shift of wafl.shifts, or several; in Python alone."] = ()
    noise: Annotated[
        float | None,
        Positive("; without noise give shifts"),
        Tunable(),
        "The root of the mean cost of the Gaussian moves; 1 if there are no shifts, and otherwise none.",
    ] = None
    cost_matrix: Annotated[
        Any, Matrix(), "Which Gaussian moves are large, as in a ball; examples may then leave the bounds."
    ] = None
    bounds: Annotated[
        Bounds, Box(), "Where moved examples must stay: 'data' (what the data declare), a box, or none (anywhere)."
    ] = DATA

    def __post_init__(self) -> None:
        super().__post_init__()
        shifts: tuple[Any, ...] = (self.shifts,) if isinstance(self.shifts, Mover) else tuple(self.shifts)
        for shift in shifts:
            if not isinstance(shift, Mover) or not hasattr(shift, "apply"):
                raise ValueError(f"shifts={shift!r} must be shifts that move examples, such as wafl.shifts.blur(1.0)")
        if not shifts and self.noise is None:
            object.__setattr__(self, "noise", 1.0)
        object.__setattr__(self, "shifts", shifts)
        object.__setattr__(self, "cost_matrix", check_cost_matrix(self.cost_matrix))
        object.__setattr__(self, "bounds", check_bounds(self.bounds))
        if self.cost_matrix is not None and (shifts or self.bounds not in (None, DATA)):
            raise ValueError("cost_matrix= is for noise without shifts or bounds: leave one out")

    def scalars(self) -> dict[str, float]:
        """Return the noise, if there is any."""
        return {} if self.noise is None else {"noise": self.noise}

    def within(self, declared: Region | None) -> Self:
        """Return these moves for data with this declared box; the shifts respect it, too."""
        return replace(super().within(declared), shifts=tuple(shift.within(declared) for shift in self.shifts))

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the examples after random moves."""
        x, state = shared(x), state or ObjectiveState()
        whole, rest = lane_key(state, problem.params), x.dense()
        shares = slice(None, None, x.lanes // len(x.base))  # one lane of those that share their examples
        key = Key(whole.seed[shares], whole.round[shares], whole.client[shares], whole.step[shares])
        moved = replace(x, base=self._shifted(x.base, key)).dense() if self.shifts else rest
        steps = None
        if self.noise is not None:
            steps = lane_scalar(state, "noise", self.noise, rest)[:, None, None] * _spread(x, key)
            moved = moved + self._formed(steps).view_as(rest)
        if self.box is not None:
            moved = moved.clamp(*self.box)
        away = (moved - rest).flatten(2) if self.cost_matrix is None or steps is None else steps
        inputs = problem.forward(moved)
        value = problem.loss(inputs, y)
        return Move(inputs, y, value, away.square().sum(-1), torch.ones_like(value, dtype=torch.bool), state=state)

    def _shifted(self, x: Tensor, key: Key) -> Tensor:
        """Return the examples ``[G, B, ...]``, each moved by a shift and an index that are drawn for it."""
        words = example_draws(_numbers, key, x.shape[1], 2).expand(len(x), -1, -1).reshape(-1, 2)
        flat = x.flatten(0, 1)
        chosen = (words[:, 1] * len(self.shifts) >> 32).view(-1, *[1] * (flat.ndim - 1))
        moved: list[Tensor] = [shift.apply(flat, rows=words[:, 0]) for shift in self.shifts]
        return reduce(lambda some, at: torch.where(chosen == at, moved[at], some), range(len(moved)), flat).view_as(x)

    def _formed(self, steps: Tensor) -> Tensor:
        """Return ``A v`` for each row v, summed in double precision so that no bit depends on the number of rows."""
        if self.cost_matrix is None:
            return steps
        if not isinstance(self.cost_matrix, CostMatrix):
            raise ValueError(f"cost_matrix={self.cost_matrix!r} needs clients, and there are none here: give a matrix")
        self.cost_matrix.check_fits(steps.shape[-1])
        return (steps.double() @ self.cost_matrix.like(steps).double().mT).to(steps)


def _numbers(key: Key, purpose: Purpose, count: int) -> Tensor:
    return bits(key, purpose + 256, count)  # noise has the purpose itself


def _spread(x: Inputs, key: Key) -> Tensor:
    """Return ``n / sqrt(D)`` for each example of each lane ``[L, B, D]``, n standard normal.

    Equal for shared examples.
    """
    groups, batch, features = x.base.flatten(2).shape
    drawn = example_draws(normal, key, batch, features).to(x.base) / math.sqrt(features)
    return drawn.expand(groups, -1, -1).repeat_interleave(x.lanes // groups, dim=0)


@frozen
class Mixed(Objective):
    """Descend ``t loss(m, y_i) + (1 - t) loss(m, y_j)`` at ``m = t x_i + (1 - t) x_j``, with t from Beta(alpha, alpha).

    The examples j are the examples of the same client's batch in a random order. For cross-entropy and the squared
    error this has the gradient of the loss at the mixed label.
    """

    alpha: Annotated[
        float, Positive("; without mixing use FedAvg"), Tunable(), "How evenly examples are mixed; near 0 not at all."
    ] = 0.2

    def scalars(self) -> dict[str, float]:
        """Return alpha."""
        return {"alpha": self.alpha}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Return the mixed examples, with the losses of both labels as terms."""
        x, state = dense(x), state or ObjectiveState()
        key, loss = lane_key(state, x), problem.output_loss
        alpha = lane_scalar(state, "alpha", self.alpha, problem.params).double()
        share = symmetric_beta(alpha, uniform(key, Purpose.START + 256, 2)).to(x)[:, None]
        real = x.new_ones(x.shape[:2]) if state.weight is None else state.weight
        order = permutation(key, Purpose.START, (real > 0).sum(1), x.shape[1])

        def others(values: Tensor) -> Tensor:
            return values.take_along_dim(order.view(*order.shape, *(1,) * (values.ndim - 2)), dim=1)

        mixed = x.lerp(others(x), (1.0 - share).view(-1, *(1,) * (x.ndim - 1)))
        outputs, y_other = problem.outputs(mixed), others(y)
        value = share * loss.value(outputs, y) + (1.0 - share) * loss.value(outputs, y_other)
        first, second = (loss.gradient(outputs, label) for label in (y, y_other))
        slopes = share[..., None] * first + (1.0 - share)[..., None] * second
        cost = (mixed - x).flatten(2).square().sum(-1)
        return Move(mixed, y, value, cost, torch.ones_like(cost, dtype=torch.bool), state, (Term(mixed, slopes),))


def symmetric_beta(alpha: Tensor, draws: Tensor) -> Tensor:
    """Return a draw from Beta(alpha, alpha) for each ``alpha [L]``, computed from two uniform ``draws [L, 2]``.

    With t from Student's distribution with ``2 alpha`` degrees of freedom, the draw is ``1/2 + t / (2 sqrt(2 alpha +
    t^2))``, and ``t = sqrt(2 alpha (u^(-1 / alpha) - 1)) cos(2 pi v)`` (Bailey, "Polar generation of random variates
    with the t-distribution", Mathematics of Computation 1994). No draw is rejected, so a captured step can compute it.
    """
    cosine = torch.cos(2.0 * math.pi * draws[:, 1])
    odds = torch.expm1(-torch.log1p(-draws[:, 0]) / alpha)
    return 0.5 + 0.5 * cosine / torch.sqrt(cosine.square() + 1.0 / odds)


moved = maker(RandomMoves)
mixup = maker(Mixed)
