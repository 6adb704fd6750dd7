"""What happens to clients' test data: attacks on each example, and the worst shift of a distribution."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from wafl.adversaries import AdversaryState, BoundedAscent, Move, Wasserstein, fgsm
from wafl.checks import check_seed
from wafl.inputs import Inputs
from wafl.norms import norm_name
from wafl.random import Key
from wafl.run import Run
from wafl.surrogate import move_one_lane, single_lane
from wafl.task import Loss, Problem


@dataclass(frozen=True)
class Population:
    """Examples in one lane, ``x [1, N, ...]`` and ``y [1, N]``.

    ``rows [N]`` numbers them, which random draws go by (default: from 0); ``weight [N]`` is how much each counts and
    sums to 1 (default: all alike).
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    weight: Tensor | None = None

    def numbers(self) -> Tensor:
        return torch.arange(self.x.shape[1]) if self.rows is None else self.rows

    def shares(self) -> Tensor:
        count = self.x.shape[1]
        return self.x.new_full((count,), 1.0 / count) if self.weight is None else self.weight.to(self.x)


class Attack(ABC):
    """Called as ``attack(model, x, y)``; gives the moved examples."""

    pointwise: ClassVar[bool] = True
    """Whether each example is moved by itself, whatever the others are."""

    def __call__(self, model: nn.Module | Run, x: Any, y: Any, *, loss: Loss | None = None, seed: int = 0) -> Tensor:
        problem, inputs, labels = single_lane(model, x, y, loss)
        return self.move(problem, Population(inputs, labels), seed)[0]

    @abstractmethod
    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """The moved ``x [1, N, ...]`` of a whole population."""

    @abstractmethod
    def describe(self, unit: str) -> str:
        """In words, with the unit of its size."""


class BoundedAttack(Attack):
    """Ascent within ``||delta|| <= epsilon``, for many models and many epsilons at once."""

    @abstractmethod
    def adversary(self) -> BoundedAscent: ...

    def sizes(self, lanes: int) -> dict[str, Tensor]:
        """Epsilon and step size, one value a lane."""
        scalars = self.adversary().scalars()
        return {name: torch.full((lanes,), value, dtype=torch.float64) for name, value in scalars.items()}

    def beside(self, others: Sequence[BoundedAttack], runs: int) -> BoundedAttack:
        """This attack on the first ``runs`` lanes, the others on as many each after them."""
        return _SideBySide((self, *others), runs) if others else self

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        return self.move_lanes(problem, Inputs(population.x, 1), population.y, seed, population.numbers())

    def move_lanes(self, problem: Problem, x: Inputs, y: Tensor, seed: int, rows: Tensor) -> Tensor:
        """Every lane's model attacked on the examples with these numbers."""
        number = rows.to(problem.params.device)[None]
        key = Key(torch.full_like(number, check_seed(seed)), torch.zeros_like(number), number, torch.zeros_like(number))
        state = AdversaryState({name: size.to(problem.params) for name, size in self.sizes(x.lanes).items()}, key)
        return self.adversary()(problem, x, y, state).x_adv


@dataclass(frozen=True)
class _SideBySide(BoundedAttack):
    attacks: tuple[BoundedAttack, ...]
    runs: int

    def adversary(self) -> BoundedAscent:
        return self.attacks[0].adversary()

    def sizes(self, lanes: int) -> dict[str, Tensor]:
        parts = [attack.sizes(self.runs) for attack in self.attacks]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def describe(self, unit: str) -> str:
        return "; ".join(attack.describe(unit) for attack in self.attacks)


def same_but_size(one: Attack | None, other: Attack | None) -> bool:
    """Whether two attacks differ in epsilon and step size at most."""
    if not isinstance(one, BoundedAttack) or not isinstance(other, BoundedAttack):
        return False
    first, second = one.adversary(), other.adversary()
    return replace(first, epsilon=0.0, step_size=None) == replace(second, epsilon=0.0, step_size=None)


@dataclass(frozen=True)
class PGD(BoundedAttack):
    """Projected gradient ascent within ``||delta|| <= epsilon`` (norm inf or 2), in the units of the data.

    With ``restarts`` the example keeps the end point of largest loss.

    >>> attack = PGD(epsilon=0.1, step_size=0.02, steps=10)
    >>> moved = attack(torch.nn.Linear(4, 2), torch.zeros(3, 4), torch.tensor([0, 1, 0]))
    >>> bool(moved.abs().max() <= 0.1)
    True
    """

    epsilon: float
    step_size: float | None = None
    steps: int = 40
    norm: float = math.inf
    random_start: bool = False
    restarts: int = 1
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self.adversary()

    def describe(self, unit: str) -> str:
        return f"{norm_name(self.norm)} PGD, epsilon {self.epsilon:g} ({unit}), {self.steps} steps"

    def adversary(self) -> BoundedAscent:
        return BoundedAscent(
            self.epsilon, self.step_size, self.steps, self.norm, self.random_start, self.restarts, self.bounds
        )


@dataclass(frozen=True)
class FGSM(BoundedAttack):
    """One gradient step of length epsilon, in the units of the data."""

    epsilon: float
    norm: float = math.inf
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self.adversary()

    def describe(self, unit: str) -> str:
        return f"{norm_name(self.norm)} FGSM, epsilon {self.epsilon:g} ({unit})"

    def adversary(self) -> BoundedAscent:
        return fgsm(epsilon=self.epsilon, norm=self.norm, bounds=self.bounds)


@dataclass(frozen=True)
class WassersteinShift(Attack):
    """The worst distribution within ``radius`` of the population: the case the theory speaks of.

    One gamma serves the whole weighted population. It is found by bisection, so that the weighted mean squared
    distance is at most ``radius**2``; where that mean jumps at a gamma, only some of the examples move on, those
    that gain most for their cost.
    """

    pointwise: ClassVar[bool] = False

    radius: float
    norm: float = 2
    steps: int = 100
    tolerance: float = 1e-5
    bounds: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not (self.radius >= 0 and math.isfinite(self.radius)):
            raise ValueError(f"radius={self.radius} must be finite and at least 0, in the units of the data")
        self._adversary(1.0)

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        x, y, share = population.x, population.y, population.shares()
        budget = self.radius**2
        if budget == 0:
            return x

        def at(gamma: float) -> Move:
            return move_one_lane(self._adversary(gamma), problem, x, y, seed)

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
            if low < 1e-12:  # even for free the examples go no further: the loss is flat, or the box is full
                return far.x_adv
            far = at(low)
        for turn in range(60):
            if high / low < 1.0 + 1e-6 or spent(near) > budget * (1.0 - 1e-6):
                break
            # Every other time where a power law through both ends would spend the budget: where nothing jumps, what is
            # spent nearly is one.
            cheap, dear = math.log(max(spent(near), 1e-300) / budget), math.log(spent(far) / budget)
            way = 0.5 if turn % 2 else min(max(dear / (dear - cheap), 1e-3), 1.0 - 1e-3)
            middle = low * (high / low) ** way
            move = at(middle)
            if spent(move) <= budget:
                high, near = middle, move
            else:
                low, far = middle, move
        return _spend_rest(problem, x, y, near, far, share, budget)

    def describe(self, unit: str) -> str:
        return f"worst {norm_name(self.norm)} Wasserstein shift, radius {self.radius:g} ({unit})"

    def _adversary(self, gamma: float) -> Wasserstein:
        return Wasserstein(
            gamma, norm=self.norm, steps=self.steps, tolerance=self.tolerance, restarts=1, bounds=self.bounds
        )


def _spend_rest(problem: Problem, x: Tensor, y: Tensor, near: Move, far: Move, share: Tensor, budget: float) -> Tensor:
    """At a jump of gamma, take examples from their near to their far point while the budget lasts.

    The first that no longer fits goes part of the way: the squared distance is convex, so a share t of the way costs
    at most t of the difference.
    """
    gain = problem.loss(far.x_adv, y)[0] - problem.loss(near.x_adv, y)[0]
    extra = share * (far.cost[0] - near.cost[0])
    worth = (gain > 0) & (extra > 0)
    order = torch.where(worth, share * gain / extra.clamp_min(1e-30), -math.inf).argsort(descending=True, stable=True)
    order = order[worth[order]]
    left = budget - float(share @ near.cost[0])
    before = extra[order].cumsum(0) - extra[order]
    way = torch.zeros_like(extra)
    way[order] = ((left - before) / extra[order]).clamp(0.0, 1.0)
    mixed = torch.lerp(near.x_adv, far.x_adv, way.view(1, -1, *(1,) * (x.ndim - 2)))
    better = (problem.loss(mixed, y) > problem.loss(near.x_adv, y)).view(1, -1, *(1,) * (x.ndim - 2))
    return torch.where(better, mixed, near.x_adv)
