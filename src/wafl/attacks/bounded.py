"""Attacks inside a ball around each example: PGD and FGSM."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from wafl.attacks.base import BOUNDS, SPACE, Attack, Population, Settings, refuse_space, where
from wafl.base.bounds import DATA, Bounds, in_words
from wafl.base.checks import check_seed
from wafl.base.norms import norm_name
from wafl.base.options import Box, Choice, Count, NotNegative, Positive, frozen, options_of
from wafl.base.random import Key
from wafl.objectives import BoundedAscent, ObjectiveState, ProjectedAscent
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem
from wafl.tasks.task import Moved

EPSILON = "The radius of the ball, in the units of the data."
NORMS = Choice((2, math.inf))


class BoundedAttack(Attack):
    """Ascent within ``||delta|| <= epsilon``, for many models and many epsilons at once."""

    def __post_init__(self) -> None:
        self.objective()

    @abstractmethod
    def objective(self) -> BoundedAscent:
        """The ascent that finds the moves."""

    @property
    def reach(self) -> tuple[str, float, float] | None:
        return self.objective().reach

    def describe(self, unit: str) -> str:
        ascent = self.objective()
        size = f"epsilon {ascent.epsilon:g} ({where(ascent.space, unit)})"
        steps = f", {ascent.steps} steps" if isinstance(ascent, ProjectedAscent) else ""
        return f"{norm_name(ascent.norm)} {type(self).__name__}, {size}{steps}, {in_words(ascent.bounds)}"

    def sizes(self, lanes: int) -> dict[str, Tensor]:
        """Epsilon and step size, one value per lane."""
        scalars = self.objective().scalars()
        return {name: torch.full((lanes,), value, dtype=torch.float64) for name, value in scalars.items()}

    def beside(self, others: "Sequence[BoundedAttack]", runs: int) -> "BoundedAttack":
        """This attack on the first ``runs`` lanes, and each of the others on the next ``runs`` lanes."""
        return _SideBySide((self, *others), runs) if others else self

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        refuse_space(self, self.objective().space)
        return dense(self.move_lanes(problem, Inputs(population.x, 1), population.y, seed, population.numbers()))

    def move_lanes(self, problem: Problem, x: Inputs, y: Tensor, seed: int, rows: Tensor) -> Moved:
        number = rows.to(problem.params.device)[None]
        key = Key(torch.full_like(number, check_seed(seed)), torch.zeros_like(number), number, torch.zeros_like(number))
        state = ObjectiveState({name: size.to(problem.params) for name, size in self.sizes(x.lanes).items()}, key)
        return self.objective()(problem, x, y, state).inputs


@dataclass(frozen=True)
class _SideBySide(BoundedAttack):
    """Attacks that differ only in size, each on its own ``runs`` lanes."""

    attacks: tuple[BoundedAttack, ...]
    runs: int

    def objective(self) -> BoundedAscent:
        return self.attacks[0].objective()

    def sizes(self, lanes: int) -> dict[str, Tensor]:
        sizes = [attack.sizes(self.runs) for attack in self.attacks]
        return {name: torch.cat([each[name] for each in sizes]) for name in sizes[0]}

    def describe(self, unit: str) -> str:
        return "; ".join(attack.describe(unit) for attack in self.attacks)


def same_but_size(one: Attack | None, other: Attack | None) -> bool:
    """Whether two attacks differ at most in epsilon and step size, so that they can be lanes of one pass."""
    if not isinstance(one, BoundedAttack) or not isinstance(other, BoundedAttack):
        return False
    first, second = one.objective(), other.objective()
    sizes = {"epsilon", "step_size"}
    return type(first) is type(second) and all(
        getattr(first, name) == getattr(second, name) for name in options_of(type(first)) if name not in sizes
    )


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
    steps: Annotated[int, Count(), "How many steps to take."] = 40
    norm: Annotated[float, NORMS, "The norm of the ball: inf or 2."] = math.inf
    random_start: Annotated[bool, "Whether to start at a random point of the ball."] = False
    restarts: Annotated[int, "How many times to start; each example keeps the end point with the largest loss."] = 1
    bounds: Annotated[Bounds, Box(), BOUNDS] = DATA
    space: Annotated[str | None, SPACE] = None

    def objective(self) -> BoundedAscent:
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
        return BoundedAscent(**vars(self))
