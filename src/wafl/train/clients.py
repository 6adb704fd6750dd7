"""Clients as the training loop sees them, wherever they live: a roster, and engines that answer queries."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from wafl.attacks import Attack
from wafl.data.bring.intake import Intake
from wafl.evaluation.score import Score
from wafl.objectives import Objective
from wafl.objectives.ball.cost_matrix import CostMatrix
from wafl.parts.client_weights import ClientWeights
from wafl.parts.messages import Query
from wafl.results.progress import Progress
from wafl.results.run import Run
from wafl.tasks.task import Task
from wafl.train.spec import Spec
from wafl.train.trust.admission import Admitted, Tolerance
from wafl.train.trust.caps import Caps
from wafl.train.trust.trust import Trust


@dataclass(frozen=True)
class Roster:
    """What a server knows about its clients: none of their examples, and about their data only what it was told.

    ``num_examples`` is how many examples each client trains on; 0 if it was not asked. ``owners`` has, by name, the
    fingerprint of the key of the node that brought a client, if it is on a node. ``unseen`` are clients elsewhere that
    never train and are only tested. ``nodes`` says who first brought each client, a key's fingerprint or the number of
    a node; empty if every client is by itself. ``capped`` are clients that claim a larger share of all examples than
    counts.
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
    nodes: tuple[str, ...] = ()
    capped: tuple[str, ...] = ()

    @property
    def num_clients(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        kind = "regression" if self.num_classes is None else f"{self.num_classes} classes"
        examples = f", {sum(self.num_examples)} training examples" if any(self.num_examples) else ""
        return f"{self.num_clients} clients{examples}, of shape {self.input_shape}, {kind}"


Engine = Callable[[Sequence[Query], Sequence[int]], list[Admitted]]
"""A function that answers one query from each of several runs at once, given the runs' positions in their sweep.

It returns the replies that count. The queries are of one kind, and for the same vectors.
"""


def trust_in(
    roster: Roster, tolerance: Tolerance | None, caps: Caps | None, rule: ClientWeights | None = None
) -> Trust:
    """How far these clients are believed, by a method with this rule for their weights."""
    tolerance, caps, learns = tolerance or Tolerance(), caps or Caps(), rule is not None and rule.learns
    given = rule is not None and rule.closed and not learns  # weights that you gave, client by client
    declared = caps.sizes is not None and not learns  # a size says nothing about a loss
    sizes = [caps.size_of(name, roster.owners.get(name, "")) for name in roster.names] if declared else []
    known = [index for index, size in enumerate(sizes) if size is not None]
    numbers = {node: number for number, node in enumerate(dict.fromkeys(roster.nodes))}
    nodes = tuple(numbers[node] for node in roster.nodes)
    share = 1.0 if given else caps.client_share or 1.0
    return Trust(tolerance.multiple, share, frozenset(known), nodes, tolerance.clip_loss)


class Clients(Protocol):
    """Clients to train on, wherever they are."""

    @property
    def roster(self) -> Roster:
        """The clients so far; if others join, they come last in a new roster."""
        ...

    @property
    def absent(self) -> str:
        """The clients that were expected when training began and were not there, in one line; empty if all were."""
        ...

    @property
    def device(self) -> torch.device:
        """The device on which the server keeps its parameters."""
        ...

    @property
    def tolerance(self) -> Tolerance | None:
        """How much may go wrong, if anything may."""
        ...

    @property
    def caps(self) -> Caps | None:
        """What clients may claim, if anything is limited."""
        ...

    @property
    def sees_updates(self) -> bool:
        """Whether the server may know each client's update: not if they are private, nor if only means are sent."""
        ...

    def uneven_columns(self) -> str:
        """Say which columns of the examples must be scaled, if that is known; empty if none."""
        ...

    def cost_matrix_of_clients(self) -> CostMatrix:
        """Return the cost matrix of how clients differ; raise an error if it must stay private."""
        ...

    def check(self, task: Task, start: Tensor, objectives: Collection[Objective]) -> None:
        """Before any work, refuse a model or an objective that does not fit the examples."""

    def fingerprint(self) -> Mapping[str, str]:
        """Digests, by name, of what decides the clients' numbers, such as their examples; a checkpoint has the same."""
        ...

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """An engine for runs of one shape, by their places in the sweep; it keeps in ``progress`` what it remembers."""
        ...

    @property
    def testable(self) -> bool:
        """Whether any client has test examples."""
        ...

    def evaluate(self, run: Run, attack: Attack | None = None, attacked: float = 1.0, seed: int = 0) -> Score:
        """The score of a run on the clients' test examples, as :func:`wafl.evaluate` gives it."""
        ...

    def evaluate_parts(self, run: Run) -> Score:
        """The score without an attack; if some clients never train, with the scores of training data and of them."""
        ...


Judge = Callable[[Run], Mapping[int, float]]
"""A function of a run: its accuracy (for a regression, its loss) on each judge's training examples, by place."""


@runtime_checkable
class Divisible(Protocol):
    """Clients of whom some can be left out of a training, to judge the trained models."""

    def spread(self) -> float:
        """How far a client's training examples lie from their mean: the root mean square over all examples."""
        ...

    def apart(self, left_out: Sequence[int], index: int, spec: Spec, /) -> tuple[Clients, Judge]:
        """Return the clients without those left out, to train candidates for the run of this spec, and the judge."""
        ...


def squares_around_mean(x: Tensor) -> float:
    """The sum of the squared distances of a client's examples from their mean."""
    x = x.double().flatten(1)
    return float((x - x.mean(0)).square().sum()) if len(x) else 0.0


def root_mean_square(sums: Sequence[float], sizes: Sequence[float]) -> float:
    """The root mean square over the examples of all clients, given each client's sum of squares and its size."""
    return math.sqrt(sum(sums) / max(1, sum(sizes)))
