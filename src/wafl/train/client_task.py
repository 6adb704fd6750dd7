"""Define the two inputs of a client's work: what the client knows, and the server's messages."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from wafl.base.random import Key
from wafl.data.examples import Examples
from wafl.local import LocalStep, sgd
from wafl.objectives import Objective
from wafl.parts.messages import Vectors
from wafl.parts.schedule import LocalWork
from wafl.tasks.augmentation import augmented
from wafl.tasks.inputs import Inputs
from wafl.tasks.modes.statistics import FEDBN, PER_CLIENT
from wafl.tasks.problem import Problem
from wafl.tasks.task import Task
from wafl.train.batches import room_for

T = TypeVar("T")

PLAIN = sgd()
OBJECTIVE, LOCAL, STATISTICS = "objective", "local", "statistics"
"""The owners of a client's memory: two parts of a method, and BatchNorm's statistics."""
REPORT_BATCH = 256
"""The number of examples that a client evaluates together when it reports its loss."""


class Rows:
    """Tensors with one row per lane."""

    def take(self, rows: Tensor | slice) -> Self:
        """Return only these lanes."""
        return mapped(lambda value: value[rows], self)


@dataclass(frozen=True)
class LaneInput(Rows):
    """The input of each lane: ``params [L, P]``, its client, its scalars ``[L]`` and its key.

    ``memory`` is the client's memory, by the part of the method that owns it. ``vectors [L, P]`` and ``iterates [L]``
    come from the query. Every ``sharing`` consecutive lanes have the same client and key, and therefore the same
    batches. Lanes with more examples come first.
    """

    params: Tensor
    clients: Tensor
    scalars: Mapping[str, Tensor]
    key: Key
    memory: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    vectors: Vectors = field(default_factory=dict[str, Tensor])
    iterates: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    sharing: int = 1

    @cached_property
    def columns(self) -> dict[str, Tensor]:
        """The scalars as ``[L, 1]``, to multiply the rows of parameters."""
        return {name: value[:, None] for name, value in self.scalars.items()}


@dataclass(frozen=True)
class ClientTask:
    """The clients' knowledge: the task, the objective, the work of a round, their examples, and the local step.

    ``largest`` is the size of the largest client anywhere, here or on other nodes, which limits the room of a batch. 0
    means the largest client here; None means that the size is unknown. If ``judges_ends`` is True, a client reports the
    loss of its trained model on all examples; otherwise, the loss on the first batch before training.
    """

    task: Task
    objective: Objective | None
    work: LocalWork
    examples: Examples
    largest: int | None = 0
    local: LocalStep = PLAIN
    judges_ends: bool = False

    @cached_property
    def sizes(self) -> list[int]:
        """The number of examples of each client here."""
        return self.examples.num_examples.tolist()

    @cached_property
    def _largest_here(self) -> int:
        return max(self.sizes)

    def batch_room(self, size: int) -> int:
        """Return the room of a batch of a client with ``size`` examples."""
        return self._room(size, self.work.batch_size)

    def report_room(self, size: int) -> int:
        """Return the number of examples that a client evaluates together when it reports its loss."""
        return self._room(size, REPORT_BATCH)

    def _room(self, size: int, wanted: int | None) -> int:
        largest = math.inf if self.largest is None else self.largest or self._largest_here
        return int(min(room_for(size), wanted or math.inf, max(largest, size)))

    def label_counts(self, clients: Tensor) -> Tensor | None:
        """Return the clients' number of examples of each class ``[L, K]``, if the objective needs it."""
        counts = self._label_counts
        return None if counts is None else counts[clients]

    @cached_property
    def _label_counts(self) -> Tensor | None:
        y = self.examples.y
        if self.objective is None or not self.objective.counts_labels or y.is_floating_point():
            return None
        owner = torch.repeat_interleave(torch.arange(len(self.sizes), device=y.device), self.examples.num_examples)
        classes = int(y.max()) + 1
        return torch.bincount(owner * classes + y, minlength=len(self.sizes) * classes).view(-1, classes)

    @property
    def pairs(self) -> bool:
        """Whether a lane must not be computed alone, because an ascent amplifies rounding differences."""
        return self.objective is not None and (self.objective.space is not None or not self.task.steady)

    def initial_memory(self, params: Tensor) -> dict[str, Tensor]:
        """Return a client's memory before its first round, by the part of the method that owns it."""
        problem, blank = Problem(self.task, params[None]), params.new_zeros(1, 1, *self.examples.shape)
        objective = None if self.objective is None else self.objective.initial_memory(problem, blank)
        # NaN stands for the server's values, with which a client starts.
        unknown = params.new_full((len(self.kept_positions),), torch.nan) if self.kept_positions else None
        return present({OBJECTIVE: objective, LOCAL: self.local.initial_memory(params), STATISTICS: unknown})

    @cached_property
    def kept_positions(self) -> list[int]:
        """The indices of the BatchNorm parameters that each client keeps; empty if there are none."""
        if self.work.statistics not in (PER_CLIENT, FEDBN):
            return []
        return self.task.batch_norm_indices(affine=self.work.statistics == FEDBN)

    def varied(self, x: Inputs, lanes: LaneInput, key: Key) -> Inputs:
        """Return the examples of a step, shifted and mirrored at random if the schedule requires it."""
        if not (self.work.shift or self.work.flip):
            return x
        each = len(lanes.params) // len(x.base)
        group_key = Key(*(part[::each] for part in (key.seed, key.round, key.client, key.step)))
        return replace(x, base=augmented(x.base, group_key, self.work.shift, self.work.flip))

    def fetch(self, rows: Tensor, lanes: LaneInput) -> tuple[Inputs, Tensor]:
        """Return the examples in these rows ``[G, B]``, one row per group of lanes, in the parameters' type."""
        dtype = lanes.params.dtype
        x = self.examples.rows(rows, dtype)
        y = each_lane(self.examples.y[rows], lanes)
        return Inputs(x, len(lanes.params)), y.to(dtype) if y.is_floating_point() else y


def each_lane(values: Tensor, lanes: LaneInput) -> Tensor:
    """Return values of groups of lanes, repeated for each lane."""
    return values if lanes.sharing == 1 else values.repeat_interleave(lanes.sharing, dim=0)


def present(memory: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """Return the memory without empty parts."""
    return {name: value for name, value in memory.items() if value is not None}


def mapped(function: Callable[..., Tensor], first: T, *others: T) -> T:
    """Apply a function to each tensor of ``first``, a dataclass or a mapping, and the matching tensors of the others.

    >>> import torch
    >>> mapped(torch.add, {"a": torch.tensor(1), "b": None}, {"a": torch.tensor(2), "b": None})
    {'a': tensor(3), 'b': None}
    """
    if isinstance(first, Tensor):
        return cast(T, function(first, *others))
    if isinstance(first, Mapping):
        parts = cast(Mapping[str, Any], first)
        rest = cast(tuple[Mapping[str, Any], ...], others)
        return cast(T, {name: mapped(function, part, *(each[name] for each in rest)) for name, part in parts.items()})
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        changed = {name: mapped(function, *(getattr(each, name) for each in (first, *others))) for name in names}
        return cast(T, replace(cast(Any, first), **changed))
    return first


def tensors_of(value: Any) -> list[Tensor]:
    """Return all tensors of a value."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        parts = list(cast(Mapping[str, Any], value).values())
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in fields(value)]
    else:
        return []
    return [tensor for part in parts for tensor in tensors_of(part)]
