"""What an attack is: it moves clients' test examples, one by one or as a distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from wafl.base.mover import Mover
from wafl.objectives.surrogate import single_lane
from wafl.results.run import Run
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.tasks.task import Loss, Moved


@dataclass(frozen=True)
class Population:
    """Examples in one lane, ``x [1, N, ...]`` and ``y [1, N]``.

    ``rows [N]`` are their numbers, which random draws are keyed by (default: from 0); ``weight [N]`` is how much each
    counts and sums to 1 (default: all the same).
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


class Attack(Mover, ABC):
    """Called as ``attack(model, x, y)``; returns the moved examples."""

    pointwise: ClassVar[bool] = True
    """Whether each example is moved by itself, whatever the others are."""
    needs_classes: ClassVar[bool] = False
    """Whether the attack refuses a regression."""

    def at_once(self, usual: int, device: torch.device) -> int:
        """How many examples to attack together, if each is moved by itself and other work takes so many."""
        return usual

    def __call__(self, model: nn.Module | Run, x: Any, y: Any, *, loss: Loss | None = None, seed: int = 0) -> Tensor:
        self.check_length()
        problem, inputs, labels = single_lane(model, x, y, loss)
        return self.move(problem, Population(inputs, labels), seed)[0]

    @abstractmethod
    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """The moved ``x [1, N, ...]`` of a whole population."""

    def move_lanes(self, problem: Problem, x: Inputs, y: Tensor, seed: int, rows: Tensor) -> Moved:
        """Attack every lane's model on the same examples, which have these numbers."""
        lanes = [Problem(problem.task, problem.params[lane : lane + 1]) for lane in range(x.lanes)]
        moved = [
            self.move(alone, Population(x.base, y[lane : lane + 1], rows), seed) for lane, alone in enumerate(lanes)
        ]
        return torch.cat(moved)

    def weights(self, y: Any, num_classes: int | None, seed: int = 0) -> Tensor | None:
        """How much each attacked example counts, given labels ``y [N]``: ``[N]``, summing to 1; None: all the same."""
        return None

    @abstractmethod
    def describe(self, unit: str) -> str:
        """The attack in words, with the unit of its size."""


def place(space: str | None, unit: str) -> str:
    """Where an attack moves examples, in words: the unit of the data, or the layer."""
    return unit if space is None else f"at the output of {space}"


def refuse_space(attack: Attack, space: str | None) -> None:
    """An attack at a layer's output has no moved examples to return."""
    if space is not None:
        raise ValueError(f"{attack!r} moves a layer's output and gives no examples: use wafl.evaluate or wafl.compare")
