"""What clients report where the ball lets labels change too, at a price kappa (``label_cost``).

A move then costs ``||x' - x||^p + kappa 1(y' != y)``. A supremum over examples and labels is one over examples for each
label, so with any report on phi_gamma

    sup over (x', y') = max over k of  phi_gamma(x, k) - gamma kappa 1(k != y),

which is as tight as the report. Targets move by ``kappa ||y' - y||^2``: with the loss ``a ||s - y||^2`` and
``gamma kappa > a``, the best target makes the loss larger by the factor ``c = gamma kappa / (gamma kappa - a)``, and

    sup over (x', y') of loss - gamma cost = sup over x' of c loss - gamma ||x' - x||^2 = c phi_(gamma / c)(x, y).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wafl.base.errors import PreconditionError
from wafl.objectives import Move, Objective, ObjectiveState
from wafl.objectives.base import lane_scalar
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task
from wafl.theory.certificates.mixture import AskMeans, Means, Settings
from wafl.theory.certificates.upper import ErrorSurrogate, Report, SlopeMove


@dataclass(frozen=True)
class LabelsMove(Objective):
    """A report at the label that is worst for each example; without a report, examples stay where they are."""

    report: Report | None
    price: float

    def scalars(self) -> dict[str, float]:
        return {"gamma": 1.0} if self.report is None else self.report.scalars()

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        state = state or ObjectiveState()
        gamma = lane_scalar(state, "gamma", 1.0, problem.params)
        factor = problem.output_loss.quadratic
        if factor is not None:
            return self._of_targets(problem, x, y, state, gamma, factor)
        value, cost = self._at(problem, x, y, state)
        best = y
        for label in range(problem.outputs(x).shape[-1]):
            other = torch.full_like(y, label)
            flipped, spent = self._at(problem, x, other, state)
            flipped = torch.where(y == label, -torch.inf, flipped - (gamma * self.price)[:, None])
            better = flipped > value
            value, best = torch.where(better, flipped, value), torch.where(better, other, best)
            cost = torch.where(better, spent + self.price, cost)
        return Move(x, best, value, cost, torch.ones_like(value, dtype=torch.bool), state=state)

    def _at(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState) -> tuple[Tensor, Tensor]:
        if self.report is None:
            loss = problem.loss(x, y)
            return loss, torch.zeros_like(loss)
        move = self.report(problem, x, y, state)
        return move.value, move.cost

    def _of_targets(
        self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState, gamma: Tensor, factor: float
    ) -> Move:
        left = gamma - factor / self.price  # gamma / c
        inside = replace(state, scalars={**state.scalars, "gamma": left})
        value, cost = self._at(problem, x, y, inside)
        larger, left = (gamma / left)[:, None], left[:, None]
        # The best target is off by a (s - y) / (gamma kappa - a), and a ||s - y||^2 is the loss where the move ends.
        targets = factor * (value + left * cost) / (self.price * left.square())
        return Move(x, y, larger * value, cost + targets, torch.ones_like(value, dtype=torch.bool), state=state)


def with_labels(means: Callable[[Objective | None, Settings], Means], price: float) -> AskMeans:
    """A way to ask clients about a gamma whose labels may change at this price; not errors, which count their own."""
    if math.isinf(price):
        return means

    def ask(report: Report | None, settings: Settings) -> Means:
        stay = isinstance(report, ErrorSurrogate | SlopeMove) or not all("gamma" in each for each in settings)
        return means(report if stay else LabelsMove(report, price), settings)

    return ask


def check_label_cost(label_cost: float, task: Task, curvature: float | None) -> None:
    """Refuse a price for labels of which nothing is known to follow."""
    if not label_cost > 0:
        raise ValueError(f"label_cost={label_cost} must be positive; inf keeps labels fixed")
    linear = curvature is None and task.linear(task.initial()[None]) is not None
    targets = task.loss.quadratic is not None and linear
    if math.isfinite(label_cost) and not (targets or task.loss.labels == "classes"):
        raise PreconditionError(
            f"label_cost={label_cost:g} needs classes, or a linear model with squared error, not the loss "
            f"{task.loss.name!r} of this model: leave out label_cost, which keeps labels fixed"
        )
