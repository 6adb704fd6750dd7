"""Where clients live, as the loop that trains sees it: a roster, and engines that answer queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from wafl.adversaries import Adversary
from wafl.algorithms import Query, Replies
from wafl.algorithms.admission import Exclusion
from wafl.attacks import Attack
from wafl.core.task import Task
from wafl.engine.progress import Progress
from wafl.engine.spec import Spec
from wafl.evaluation.score import Score
from wafl.run import Run


@dataclass(frozen=True)
class Roster:
    """What a server knows of its clients: no example, and of their data only what it was told.

    ``num_examples`` is how many each trains on, 0 where that was not asked.
    """

    names: tuple[str, ...]
    num_examples: tuple[int, ...]
    input_shape: tuple[int, ...]
    num_outputs: int
    num_classes: int | None = None
    unit: str = "input units"
    bounds: tuple[float, float] | None = None
    recipe: Mapping[str, Any] | None = None

    @property
    def num_clients(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        task = "regression" if self.num_classes is None else f"{self.num_classes} classes"
        examples = f", {sum(self.num_examples)} training examples" if any(self.num_examples) else ""
        return f"{self.num_clients} clients{examples}, of shape {self.input_shape}, {task}"


@dataclass(frozen=True)
class Admitted:
    """A query as if only those had been asked whose replies count, their replies, and who was left out.

    ``diverged`` says that the replies came but too few of them were finite, while other runs had enough.
    """

    query: Query
    replies: Replies
    excluded: Sequence[Exclusion] = ()
    attempts: int = 1
    diverged: str | None = None


class Engine(Protocol):
    """SurveyReplies one query of each of several runs at once; all queries are of one kind and round."""

    def run(self, queries: Sequence[Query], runs: Sequence[int]) -> list[Admitted]: ...


class Clients(Protocol):
    """Clients to train on, wherever they are; ``device`` is where the server keeps its parameters."""

    @property
    def roster(self) -> Roster:
        """The clients so far: others may come behind them, and then this is another roster."""
        ...

    @property
    def device(self) -> torch.device: ...

    def check(self, task: Task, start: Tensor, adversaries: Collection[Adversary]) -> None:
        """Refuse a model or an adversary that does not fit the examples, before any work."""
        ...

    def digest(self) -> bytes:
        """What a checkpoint must agree with, of the clients."""
        ...

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """An engine for runs of one shape, by their places in the sweep; what it must remember is in the progress."""
        ...

    @property
    def testable(self) -> bool:
        """Whether any client has test examples."""
        ...

    def evaluate(self, run: Run, attack: Attack | None = None, attacked: float = 1.0, seed: int = 0) -> Score:
        """As :func:`wafl.evaluate`."""
        ...
