"""The center of the ball as the theory sees it: a model on the clients' mixed examples, in float64."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, Self

import torch
from torch import Tensor, nn

from wafl.attacks import Population, WassersteinShift
from wafl.data.examples import Examples
from wafl.data.federation import Federation
from wafl.objectives import Objective
from wafl.results.run import Run
from wafl.tasks.fitness import check_fitness
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Loss, Task
from wafl.theory.certificates.upper import Report
from wafl.theory.constants.assumptions import task_of
from wafl.train.embedded import find_device
from wafl.train.survey import Survey, SurveyReplies
from wafl.weights import ClientWeights, by_examples

Settings = Sequence[Mapping[str, float]]
"""What an objective's scalars are, once per question."""


@dataclass(frozen=True)
class Means:
    """Means of an objective's value and cost over the mixture, one per setting of its scalars."""

    value: list[float]
    cost: list[float]


AskMeans = Callable[[Report | None, Settings], Means]
"""Ask the clients of a mixture for their means."""


class Asked(Protocol):
    """A model and the clients of a mixture, wherever their examples are."""

    @property
    def task(self) -> Task: ...
    @property
    def params(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor: ...
    def answers(self, objective: Objective | None, settings: Settings, seed: int = 0) -> SurveyReplies: ...


@dataclass(frozen=True)
class Mixture:
    """``P_lambda``: each client's examples, with the client's weight."""

    task: Task
    params: Tensor
    examples: Examples
    weights: Tensor
    device: str = "cpu"
    """Where clients are asked; the rest stays here."""

    @classmethod
    def of(
        cls,
        model: Run | nn.Module,
        clients: Federation,
        part: Literal["train", "test"] = "train",
        client_weights: ClientWeights | None = None,
        loss: Loss | None = None,
    ) -> Self:
        """``client_weights=None`` means the run's final weights, or by examples for a plain model."""
        if part not in ("train", "test"):
            raise ValueError(f"part={part!r} must be 'train' or 'test'")
        examples = clients.train if part == "train" else clients.test
        sizes = examples.num_examples.tolist()
        if min(sizes) == 0:
            raise ValueError(f"{clients.names[sizes.index(0)]} has no {part} examples: use part='train'")
        if client_weights is not None or not isinstance(model, Run):
            weights = (client_weights or by_examples()).initial(sizes)
        else:
            weights = model.client_weights.double()
            if len(weights) != len(sizes):
                raise ValueError(f"the run has {len(weights)} clients, this federation {len(sizes)}: give its own")
        task, params = task_of(model, loss)
        mixture = cls(task, params, examples, weights / weights.sum())
        population = mixture._population(slice(0, 1))
        check_fitness(mixture.problem, population.x, population.y, clients.num_classes)
        return mixture

    @property
    def problem(self) -> Problem:
        return Problem(self.task, self.params[None])

    def means(self, objective: Objective | None, settings: Settings, seed: int = 0) -> Means:
        """``sum_i lambda_i`` times what each client reports: two numbers per client and setting."""
        answers = self.answers(objective, settings, seed)
        return Means((answers.value @ self.weights).tolist(), (answers.cost @ self.weights).tolist())

    def answers(self, objective: Objective | None, settings: Settings, seed: int = 0) -> SurveyReplies:
        """What each client reports."""
        return Survey(*self._there, objective).ask(settings, seed)

    @cached_property
    def _there(self) -> tuple[Task, Tensor, Examples]:
        """What clients are asked with, on the device."""
        if self.device == "cpu":
            return self.task, self.params, self.examples
        device = find_device(self.device)
        task = make_task(self.task.module, self.task.loss, device, self.task.layout)
        return task, self.params.to(device), self.examples.to(device)

    def population(self) -> Population:
        """All examples in one lane, each with its share."""
        return self._population(slice(None))

    def worst_loss(self, shift: WassersteinShift, seed: int = 0) -> float:
        """The expected loss of the worst distribution that a shift finds."""
        return shift.loss_of_worst(self.problem, self.population(), seed)

    def _population(self, rows: slice) -> Population:
        x = self.examples.prepare(self.examples.raw[rows], self.params.dtype)
        y = self.examples.y[rows]
        y = y.to(self.params.dtype) if y.is_floating_point() else y
        share = torch.repeat_interleave(self.weights / self.examples.num_examples, self.examples.num_examples)
        return Population(x[None], y[None], None, share[rows])
