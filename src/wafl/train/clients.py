"""Define clients for the training loop, wherever they are: a roster, and engines that answer queries."""

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
    """The server's facts about its clients, without their examples and with only declared facts about their data.

    ``num_examples`` contains the number of training examples of each client, or 0 if the client was not asked.
    ``owners`` contains, by name, the key fingerprint of the node that brought a client. ``unseen`` are clients
    elsewhere that take no part in training and are only tested. ``nodes`` contains the node that first brought each
    client, by a key's fingerprint or a number; it is empty if every client is its own node. ``capped`` are clients that
    claim a larger share of all examples than allowed.
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
        """The number of clients."""
        return len(self.names)

    def __str__(self) -> str:
        kind = "regression" if self.num_classes is None else f"{self.num_classes} classes"
        examples = f", {sum(self.num_examples)} training examples" if any(self.num_examples) else ""
        return f"{self.num_clients} clients{examples}, of shape {self.input_shape}, {kind}"


Engine = Callable[[Sequence[Query], Sequence[int]], list[Admitted]]
"""A function that answers one query from each of several runs at once, given the runs' indices in their sweep.

It returns the valid replies. All queries have the same kind and ask for the same vectors.
"""


def trust_in(
    roster: Roster, tolerance: Tolerance | None, caps: Caps | None, rule: ClientWeights | None = None
) -> Trust:
    """Return the trust in these clients, for a method with this rule for the client weights."""
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
        """The expected clients that were missing when training began, in one line; empty if none was."""
        ...

    @property
    def device(self) -> torch.device:
        """The device on which the server keeps its parameters."""
        ...

    @property
    def tolerance(self) -> Tolerance | None:
        """The tolerated failures, or None if there are none."""
        ...

    @property
    def caps(self) -> Caps | None:
        """The limits of the clients' claims, or None if there are none."""
        ...

    @property
    def sees_updates(self) -> bool:
        """Whether the server may see each client's update: not if they are private or only means are sent."""
        ...

    def uneven_columns(self) -> str:
        """Name the columns of the examples that must be scaled.

        Return an empty string if there are none or they are unknown.
        """
        ...

    def cost_matrix_of_clients(self, task: Task, start: Tensor, layer: str | None) -> CostMatrix:
        """Return the cost matrix of the clients' differences, at their inputs or at a layer of the starting model.

        Raise an error if it is private.
        """
        ...

    def check(self, task: Task, start: Tensor, objectives: Collection[Objective]) -> None:
        """Raise an error, before any work, if a model or an objective does not suit the examples."""

    def fingerprint(self) -> Mapping[str, str]:
        """Return digests, by name, of everything that determines the clients' numbers, such as their examples.

        A checkpoint contains the same digests.
        """
        ...

    def engine(self, task: Task, specs: Mapping[int, Spec], group: int, progress: Progress) -> Engine:
        """Return an engine for runs of one shape, by their indices in the sweep, with its state in ``progress``."""
        ...

    @property
    def testable(self) -> bool:
        """Whether any client has test examples."""
        ...

    def evaluate(self, run: Run, attack: Attack | None = None, attacked: float = 1.0, seed: int = 0) -> Score:
        """Return the score of a run on the clients' test examples, as in :func:`wafl.evaluate`."""
        ...

    def evaluate_parts(self, run: Run) -> Score:
        """Return the score without an attack, with separate scores of unseen clients, if there are any."""
        ...


Judge = Callable[[Run], Mapping[int, float]]
"""A function that returns a run's accuracy (for regression, its loss) on each judge's training examples."""


@runtime_checkable
class Divisible(Protocol):
    """Clients of which some can be held out of training, to judge the trained models."""

    def spread(self) -> float:
        """Return the root mean square distance of a client's training examples from their mean.

        The mean is over all examples.
        """
        ...

    def apart(self, left_out: Sequence[int], index: int, spec: Spec, /) -> tuple[Clients, Judge]:
        """Return the clients without the held-out ones, to train candidates for this run, and the judge."""
        ...


def squares_around_mean(x: Tensor) -> float:
    """Return the sum of the squared distances of a client's examples from their mean."""
    x = x.double().flatten(1)
    return float((x - x.mean(0)).square().sum()) if len(x) else 0.0


def root_mean_square(sums: Sequence[float], sizes: Sequence[float]) -> float:
    """Return the root mean square over all clients' examples, given each client's sum of squares and size."""
    return math.sqrt(sum(sums) / max(1, sum(sizes)))
