"""Attack within a radius: PGD and FGSM around each example, and the worst shift of a whole distribution."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from wafl.attacks.base import BOUNDS, SPACE, Attack, Population, Settings, refuse_space, where
from wafl.base.bounds import DATA, Bounds, in_words
from wafl.base.checks import check_seed, check_space
from wafl.base.norms import norm_name
from wafl.base.options import Box, Choice, Count, Norm, NotNegative, Positive, Range, check_options, frozen
from wafl.base.random import Key
from wafl.objectives import BoundedAscent, Move, ObjectiveState, ProjectedAscent, Wasserstein
from wafl.objectives.surrogate import move_one_lane, single_lane
from wafl.results.run import Run
from wafl.tasks.inputs import dense
from wafl.tasks.problem import Problem
from wafl.tasks.task import Loss, Moved

EPSILON = "The radius of the ball, in the units of the data."
NORMS = Choice((2, math.inf))


class BoundedAttack(Attack):
    """An attack by ascent within ``||delta|| <= epsilon``."""

    def __post_init__(self) -> None:
        self.objective()

    @abstractmethod
    def objective(self) -> BoundedAscent:
        """Return the ascent that finds the moves."""

    @property
    def reach(self) -> tuple[str, float, float] | None:
        """The name of the size option, its value and its norm."""
        return self.objective().reach

    def describe(self, unit: str) -> str:
        """Describe the attack: norm, epsilon with its unit, steps and bounds."""
        ascent = self.objective()
        size = f"epsilon {ascent.epsilon:g} ({where(ascent.space, unit)})"
        steps = f", {ascent.steps} steps" if isinstance(ascent, ProjectedAscent) else ""
        return f"{norm_name(ascent.norm)} {type(self).__name__}, {size}{steps}, {in_words(ascent.bounds)}"

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """Return the moved examples."""
        refuse_space(self, self.objective().space)
        return dense(self.moved(problem, population, seed))

    def moved(self, problem: Problem, population: Population, seed: int = 0) -> Moved:
        """Return the moves of a population, also at the output of a layer."""
        key = Key.of_examples(check_seed(seed), population.numbers().to(problem.params.device)[None])
        return self.objective()(problem, population.x, population.y, ObjectiveState(key=key)).inputs


@frozen
class PGD(BoundedAttack):
    """Projected gradient ascent within ``||delta|| <= epsilon`` (norm inf or 2), in the units of the data.

    >>> attack = PGD(epsilon=0.1, step_size=0.02, steps=10)
    >>> moved = attack(torch.nn.Linear(4, 2), torch.zeros(3, 4), torch.tensor([0, 1, 0]))
    >>> bool(moved.abs().max() <= 0.1)
    True
    """

    settings: ClassVar[Settings] = Settings("epsilon", 0.1, ("norm", "bounds", "steps", "step_size", "space"))

    epsilon: Annotated[float, NotNegative, EPSILON]
    step_size: Annotated[
        float | None,
        Positive(),
        "The length of a step; by default 2.5 * epsilon / steps, or epsilon for a single step.",
    ] = None
    steps: Annotated[int, Count(), "The number of steps."] = 40
    norm: Annotated[float, NORMS, "The norm of the ball: inf or 2."] = math.inf
    random_start: Annotated[bool, "Whether to start at a random point of the ball."] = False
    restarts: Annotated[int, "The number of starts; each example keeps the end point with the largest loss."] = 1
    bounds: Annotated[Bounds, Box(), BOUNDS] = DATA
    space: Annotated[str | None, SPACE] = None

    def objective(self) -> BoundedAscent:
        """Return the projected ascent with these options."""
        return ProjectedAscent(**vars(self))


@frozen
class FGSM(BoundedAttack):
    """One gradient step of length epsilon, in the units of the data."""

    settings: ClassVar[Settings] = Settings("epsilon", 0.1, ("norm", "bounds", "space"))

    epsilon: Annotated[float, NotNegative, EPSILON]
    norm: Annotated[float, NORMS, "The norm of the ball: inf or 2."] = math.inf
    bounds: Annotated[Bounds, Box(), BOUNDS] = DATA
    space: Annotated[str | None, SPACE] = None

    def objective(self) -> BoundedAscent:
        """Return the ascent of one step with these options."""
        return BoundedAscent(**vars(self))


SAME, NEAR = 1e-6, 1e-2
"""The allowed gap between the last two gammas, for exact moves and for a mixture of both.

A mixture's error is the square of the gap.
"""


@dataclass(frozen=True)
class SplitMass:
    """A distribution that places each example at two points: the share ``far_share [N]`` of its mass is at ``far``."""

    near: Tensor
    far: Tensor
    far_share: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """Return the distribution that places each example at a single point."""
        return cls(x, x, x.new_zeros(x.shape[1]))

    def one_each(self, problem: Problem, y: Tensor) -> Tensor:
        """Return a single point for each example.

        An example with split mass moves part of the way, at no higher cost, if this increases its loss.
        """
        lead = (1, -1, *(1,) * (self.near.ndim - 2))
        mixed = torch.lerp(self.near, self.far, self.far_share.view(lead))
        better = (problem.loss(mixed, y) > problem.loss(self.near, y)).view(lead)
        return torch.where(better, mixed, self.near)


@frozen
class WassersteinShift(Attack):
    """The worst distribution within ``radius`` of the population, the case that the theory covers.

    The whole weighted population uses one gamma. Bisection finds the gamma, so that the weighted mean squared distance
    is at most ``radius**2``. If that mean jumps at some gamma, only the examples with the largest gain per cost take
    the longer move. The worst distribution splits the mass of the last such example, as :meth:`worst_loss` does. A
    moved example cannot be split, so it moves part of the way instead. With many examples this makes no difference.
    """

    pointwise: ClassVar[bool] = False
    settings: ClassVar[Settings] = Settings("radius", 1.0, ("norm", "bounds", "space"))

    radius: Annotated[
        float, Range(0.0, hint=", in the units of the data"), "The radius of the W_2 ball, in the units of the data."
    ]
    norm: Annotated[float, Norm, "The norm of the distances: 1, 2 or inf."] = 2
    steps: Annotated[int, "The maximum number of ascent steps at each gamma."] = 100
    tolerance: Annotated[
        float,
        "The relative distance from its fixed point at which an example stops; gamma is ten times as precise.",
    ] = 1e-5
    bounds: Annotated[Bounds, Box(), BOUNDS] = DATA
    space: Annotated[str | None, SPACE] = None
    restarts: Annotated[
        int, Count(0), "The number of random starts, plus one near each other class; 0 starts only at the example."
    ] = 1

    @property
    def reach(self) -> tuple[str, float, float] | None:
        """The name of the option ``radius, its value and its norm."""
        return "radius", self.radius, self.norm

    def __post_init__(self) -> None:
        check_space(self.space, self.bounds)
        check_options(self)
        self._objective(1.0)

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """Return the moved examples."""
        refuse_space(self, self.space)
        return self._shifted(problem, population, seed)

    def moved(self, problem: Problem, population: Population, seed: int = 0) -> Moved:
        """Return the moves of a population, also at the output of a layer."""
        if self.space is None:
            return self.move(problem, population, seed)
        behind = problem.behind(self.space, population.x)
        return behind.shifted(self._shifted(behind, replace(population, x=behind.at_rest), seed))

    def worst_loss(self, model: nn.Module | Run, x: Any, y: Any, *, loss: Loss | None = None, seed: int = 0) -> float:
        """Return the expected loss of the worst distribution, in which one example's mass may be at two points.

        The examples are ``x [N, ...]`` with labels or regression targets ``y [N]``. The default loss is the run's loss,
        or cross-entropy for a plain model. The seed determines the random starts.

        >>> model = nn.Linear(1, 2)
        >>> weight = {"weight": torch.tensor([[4.0], [-4.0]]), "bias": torch.zeros(2)}
        >>> found = model.load_state_dict(weight)
        >>> round(WassersteinShift(2.0, bounds=None).worst_loss(model, [[1.0]], [0]), 2)
        8.0
        """
        self.check_length()
        refuse_space(self, self.space)
        problem, inputs, labels = single_lane(model, x, y, loss)
        return self.loss_of_worst(problem, Population(inputs, labels), seed)

    def loss_of_worst(self, problem: Problem, population: Population, seed: int = 0) -> float:
        """Return the loss of :meth:`worst_loss` for a weighted population."""
        split = self._worst(problem, population, seed, NEAR)
        near, far = (problem.loss(points, population.y)[0] for points in (split.near, split.far))
        return float(population.shares() @ torch.lerp(near, far, split.far_share))

    def _shifted(self, problem: Problem, population: Population, seed: int) -> Tensor:
        close = max(SAME, self.tolerance / 10.0)
        return self._worst(problem, population, seed, close).one_each(problem, population.y)

    def _worst(self, problem: Problem, population: Population, seed: int, close: float) -> SplitMass:
        x, y, share = population.x, population.y, population.shares()
        budget = self.radius**2
        if budget == 0:
            return SplitMass.of(x)

        def at(gamma: float) -> Move:
            return move_one_lane(self._objective(gamma), problem, x, y, seed)

        def spent(move: Move) -> float:
            return float(share @ move.cost[0])

        low, high = 1.0, 1.0
        near = far = at(1.0)
        while spent(near) > budget:
            low, far = high, near
            high *= 2.0
            near = at(high)
        while spent(far) <= budget:
            high, near = low, far
            low /= 2.0
            if low < 1e-12:  # examples move no farther even without a cost: the loss is flat, or they are at the bounds
                return SplitMass.of(far.x_adv)
            far = at(low)
        for turn in range(60):
            if high / low < 1.0 + close or spent(near) > budget * (1.0 - close):
                break
            # Every other time, try where a power law through both ends would spend the budget: without jumps, what is
            # spent almost follows one.
            cheap, dear = math.log(max(spent(near), 1e-300) / budget), math.log(spent(far) / budget)
            way = 0.5 if turn % 2 else min(max(dear / (dear - cheap), 1e-3), 1.0 - 1e-3)
            middle = low * (high / low) ** way
            move = at(middle)
            if spent(move) <= budget:
                high, near = middle, move
            else:
                low, far = middle, move
        return _spend_rest(problem, y, near, far, share, budget)

    def describe(self, unit: str) -> str:
        """Describe the shift: norm, radius with its unit, and bounds."""
        shift = f"worst {norm_name(self.norm)} Wasserstein shift"
        return f"{shift}, radius {self.radius:g} ({where(self.space, unit)}), {in_words(self.bounds)}"

    def _objective(self, gamma: float) -> Wasserstein:
        return Wasserstein(
            gamma,
            norm=self.norm,
            steps=self.steps,
            tolerance=self.tolerance,
            restarts=self.restarts,
            bounds=self.bounds,
        )


def _spend_rest(problem: Problem, y: Tensor, near: Move, far: Move, share: Tensor, budget: float) -> SplitMass:
    """Return the worst distribution where the cost jumps.

    Mass moves from its near to its far point while the budget lasts.
    """
    gain = problem.loss(far.x_adv, y)[0] - problem.loss(near.x_adv, y)[0]
    extra = share * (far.cost[0] - near.cost[0])
    worth = (gain > 0) & (extra > 0)
    order = torch.where(worth, share * gain / extra.clamp_min(1e-30), -math.inf).argsort(descending=True, stable=True)
    order = order[worth[order]]
    left = budget - float(share @ near.cost[0])
    before = extra[order].cumsum(0) - extra[order]
    far_share = torch.zeros_like(extra)
    far_share[order] = ((left - before) / extra[order]).clamp(0.0, 1.0)
    return SplitMass(near.x_adv, far.x_adv, far_share)
