"""Attacks inside a ball around each example: PGD and FGSM."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wafl.adversaries import AdversaryState, BoundedAscent, fgsm
from wafl.attacks.base import Attack, Population
from wafl.core.checks import check_seed
from wafl.core.inputs import Inputs
from wafl.core.norms import norm_name
from wafl.core.random import Key
from wafl.core.task import Problem


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
