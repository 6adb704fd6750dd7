"""Clients as the training loop sees them, wherever they live: a roster, and engines that answer queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from wafl.attacks import Attack
from wafl.data.bring.intake import Intake
from wafl.engine.spec import Spec
from wafl.evaluation.score import Score
from wafl.objectives import Objective
from wafl.objectives.ball.shape import Shape
from wafl.parts.messages import Query, Replies
from wafl.results.progress import Progress
from wafl.results.run import Run
from wafl.rounds.admission import Exclusion, Tolerance
from wafl.tasks.task import Task


@dataclass(frozen=True)
class Roster:
    """What a server knows about its clients: none of their examples, and about their data only what it was told.

    ``num_examples`` is how many examples each client trains on; 0 if it was not asked. ``owners`` has, by name, the
    fingerprint of the key of the node that brought a client, if it is on a node. ``unseen`` are clients elsewhere that
    never train and are only tested.
    """

    names: tuple[str, ...]
    num_examples: tuple[int, ...]
    input_shape: tuple[int, ...]
    num_outputs: int
    num_classes: int | None = None
    unit: str = "input units"
    bounds: tuple[float, float] | None = None
    recipe: Mapping[str, Any] | None = None
    intake: Intake = field(default_factory=Intake)
    owners: Mapping[str, str] = field(default_factory=dict[str, str])
    unseen: tuple[str, ...] = ()

    @property
    def num_clients(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        task = "regression" if self.num_classes is None else f"{self.num_classes} classes"
        examples = f", {sum(self.num_examples)} training examples" if any(self.num_examples) else ""
        return f"{self.num_clients} clients{examples}, of shape {self.input_shape}, {task}"


@dataclass(frozen=True)
class Admitted:
    """A query as if only the clients whose replies count had been asked, their replies, and who was left out.

    ``diverged`` is set if replies arrived but too few of them were finite, while other runs had enough. ``shortened``
    has, by client, the share of its update's length that was kept.
    """

    query: Query
    replies: Replies
    excluded: Sequence[Exclusion] = ()
    attempts: int = 1
    diverged: str | None = None
    shortened: Mapping[int, float] = field(default_factory=dict[int, float])


class Engine(Protocol):
    """Answers one query from each of several runs at once, all of one kind and asking for the same vectors."""

    def run(self, queries: Sequence[Query], runs: Sequence[int]) -> list[Admitted]:
        """What comes of each query; ``runs`` are the places of the runs in their sweep."""
        ...


class Clients(Protocol):
    """Clients to train on, wherever they are."""

    @property
    def roster(self) -> Roster:
        """The clients so far; if others join, they come last, and this becomes another roster."""
        ...

    @property
    def absent(self) -> str:
        """Who was expected when training began and was not there, in one line; empty if nobody is missing."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the server keeps its parameters."""
        ...

    @property
    def tolerance(self) -> Tolerance | None:
        """How much may go wrong, if anything may."""
        ...

    def shape_of_clients(self) -> Shape:
        """How clients differ, for objectives with ``shape="clients"``; an error if they do not tell."""
        ...

    def check(self, task: Task, start: Tensor, objectives: Collection[Objective]) -> None:
        """Before any work, refuse a model or an objective that does not fit the examples."""
        ...

    def fingerprint(self) -> Mapping[str, str]:
        """What a checkpoint must have in common with these clients: digests by what they are of."""
        ...

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """An engine for runs of one shape, by their places in the sweep; it keeps in ``progress`` what it remembers."""
        ...

    @property
    def testable(self) -> bool:
        """Whether any client has test examples."""
        ...

    def evaluate(self, run: Run, attack: Attack | None = None, attacked: float = 1.0, seed: int = 0) -> Score:
        """Test a run on the clients' test examples, as :func:`wafl.evaluate` does."""
        ...

    def evaluate_parts(self, run: Run) -> Score:
        """The same without an attack; if some clients never train, with the scores of training data and of theirs."""
        ...


Judge = Callable[[Run], Mapping[int, float]]
"""What clients say of a run by their training examples, by their places: accuracies, or losses of a regression."""


@runtime_checkable
class Divisible(Protocol):
    """Clients of whom some can be left out of a training, to judge it."""

    def spread(self) -> float:
        """How far a client's training examples lie from their mean: the root mean square over all examples."""
        ...

    def apart(self, left_out: Sequence[int], place: int, spec: Spec) -> tuple[Clients, Judge]:
        """The others, to train on candidates for the run of this spec and place; and what these say of a candidate."""
        ...


def squares_around_mean(x: Tensor) -> float:
    """The sum of the squared distances of a client's examples from their mean."""
    x = x.double().flatten(1)
    return float((x - x.mean(0)).square().sum()) if len(x) else 0.0


def root_mean_square(sums: Sequence[float], sizes: Sequence[int]) -> float:
    """Over the examples of all clients, of whom each has a sum of squares and a number of examples."""
    return math.sqrt(sum(sums) / max(1, sum(sizes)))
