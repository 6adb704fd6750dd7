"""Mix the clients' examples in float64, and compute the means over them that a certificate needs.

The ball may let labels change too, at a price kappa (``label_cost``). A move then costs
``||x' - x||^p + kappa 1(y' != y)``. A supremum over examples and labels is one over examples for each label, so with
any report on phi_gamma

    sup over (x', y') = max over k of  phi_gamma(x, k) - gamma kappa 1(k != y),

which is as tight as the report. Targets move by ``kappa ||y' - y||^2``: with the loss ``a ||s - y||^2`` and
``gamma kappa > a``, the best target makes the loss larger by the factor ``c = gamma kappa / (gamma kappa - a)``, and

    sup over (x', y') of loss - gamma cost = sup over x' of c loss - gamma ||x' - x||^2 = c phi_(gamma / c)(x, y).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, Self

import torch
from torch import Tensor, nn

from wafl.attacks import Population, WassersteinShift
from wafl.base.errors import PreconditionError
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.objectives import Move, Objective, ObjectiveState
from wafl.objectives.base import lane_scalar
from wafl.results.run import Run
from wafl.tasks.fitness import check_fitness
from wafl.tasks.inputs import Inputs
from wafl.tasks.losses import check_claim
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Loss, Task
from wafl.theory.certificates.upper import ErrorSurrogate, Report, SearchedSurrogate, SlopeMove
from wafl.theory.constants.assumptions import task_of
from wafl.train.embedded import find_device
from wafl.train.survey import Survey, SurveyReplies
from wafl.weights import ClientWeights, by_examples

CHECKED = 256
"""The number of examples on which a user's loss is compared with the values that its traits imply."""
Settings = Sequence[Mapping[str, float]]
"""The scalars of an objective, one mapping per question."""


@dataclass(frozen=True)
class Means:
    """Means of an objective's value and cost over the mixture, one per setting of its scalars."""

    value: list[float]
    cost: list[float]


AskMeans = Callable[[Report | None, Settings], Means]
"""A function that asks the clients of a mixture for their means."""


class Asked(Protocol):
    """The model and the clients of a mixture, on any machine."""

    @property
    def task(self) -> Task:
        """The model and its loss."""
        ...

    @property
    def params(self) -> Tensor:
        """The parameters of the model."""
        ...

    @property
    def weights(self) -> Tensor:
        """The clients' weights."""
        ...

    def answers(self, objective: Objective | None, settings: Settings, seed: int = 0) -> SurveyReplies:
        """Return the report of each client on each setting."""
        ...


@dataclass(frozen=True)
class Mixture:
    """The mixture ``P_lambda``: the examples of each client, with the client's weight."""

    task: Task
    params: Tensor
    examples: Examples
    weights: Tensor
    device: str = "cpu"
    """The device on which clients are asked; everything else stays on the CPU."""

    @classmethod
    def of(
        cls,
        model: Run | nn.Module,
        clients: Federation,
        split: Literal["train", "test"] = "train",
        client_weights: ClientWeights | None = None,
        loss: Loss | None = None,
    ) -> Self:
        """Mix the clients' examples.

        ``client_weights=None`` means the run's final weights, or by examples for a plain model.
        """
        if split not in ("train", "test"):
            raise ValueError(f"split={split!r} must be 'train' or 'test'")
        examples = clients.train if split == "train" else clients.test
        sizes = examples.num_examples.tolist()
        if min(sizes) == 0:
            raise ValueError(f"{clients.names[sizes.index(0)]} has no {split} examples: use split='train'")
        if client_weights is not None or not isinstance(model, Run):
            weights = (client_weights or by_examples()).initial(sizes)
        else:
            weights = model.client_weights.double()
            if len(weights) != len(sizes):
                raise ValueError(f"the run has {len(weights)} clients, this federation {len(sizes)}: give its own")
        task, params = task_of(model, loss, examples=examples)
        mixture = cls(task, params, examples, weights / weights.sum())
        population = mixture._population(slice(0, 1))
        check_fitness(mixture.problem, population.x, population.y, clients.num_classes)
        return mixture

    @property
    def problem(self) -> Problem:
        """The model and its parameters, as a problem with one lane."""
        return Problem(self.task, self.params[None])

    def check_claim(self) -> None:
        """Raise ValueError if a user's loss differs on the first examples from the values that its traits imply."""
        some = self._population(slice(CHECKED))
        check_claim(self.task.loss, self.problem.outputs(some.x), some.y)

    def means(self, objective: Objective | None, settings: Settings, seed: int = 0) -> Means:
        """Return ``sum_i lambda_i`` times each client's report: two numbers per client and setting."""
        answers = self.answers(objective, settings, seed)
        value, cost = (part.where(self.weights > 0, 0.0) @ self.weights for part in (answers.value, answers.cost))
        return Means(value.tolist(), cost.tolist())

    def answers(self, objective: Objective | None, settings: Settings, seed: int = 0) -> SurveyReplies:
        """Return the report of each client on each setting."""
        return Survey(*self._there, objective).ask(settings, seed)

    @cached_property
    def _there(self) -> tuple[Task, Tensor, Examples]:
        """The task, parameters and examples on the device."""
        if self.device == "cpu":
            return self.task, self.params, self.examples
        device = find_device(self.device)
        task = make_task(self.task.module, self.task.loss, device, self.task.layout)
        return task, self.params.to(device), self.examples.to(device)

    def population(self) -> Population:
        """Return all examples in one lane, each with its share."""
        return self._population(slice(None))

    def worst_loss(self, shift: WassersteinShift, seed: int = 0) -> float:
        """Return the expected loss of the worst distribution that a shift finds."""
        return shift.loss_of_worst(self.problem, self.population(), seed)

    def _population(self, rows: slice) -> Population:
        x = self.examples.prepare(self.examples.raw[rows], self.params.dtype)
        y = self.examples.y[rows]
        y = y.to(self.params.dtype) if y.is_floating_point() else y
        share = torch.repeat_interleave(self.weights / self.examples.num_examples, self.examples.num_examples)
        return Population(x[None], y[None], None, share[rows])


@dataclass(frozen=True)
class LabelsMove(Objective):
    """A report at the worst label of each example; without a report, examples do not move."""

    report: Report | None
    price: float

    def scalars(self) -> dict[str, float]:
        """Return the report's scalars and gamma."""
        return {"gamma": 1.0, **({} if self.report is None else self.report.scalars())}

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Report each example at its worst label or target."""
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
    """Return a function that asks about a gamma whose labels may change at this price; errors already count labels."""
    if math.isinf(price):
        return means

    def ask(report: Report | None, settings: Settings) -> Means:
        stay = isinstance(report, ErrorSurrogate | SlopeMove) or not all("gamma" in each for each in settings)
        if isinstance(report, SearchedSurrogate):  # the largest of several bounds may have the widest gap of each
            report = replace(report, in_the_mean=False)
        return means(report if stay else LabelsMove(report, price), settings)

    return ask


def check_label_cost(label_cost: float, task: Task) -> None:
    """Raise PreconditionError if no proof exists for labels that change at this price."""
    targets = task.loss.quadratic is not None and task.linear(task.initial()[None]) is not None
    if math.isfinite(label_cost) and not (targets or task.loss.labels == "classes"):
        raise PreconditionError(
            f"label_cost={label_cost:g} needs classes, or a linear model with squared error, not the loss "
            f"{task.loss.name!r} of this model: leave out label_cost, which keeps labels fixed"
        )
