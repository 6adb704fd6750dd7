"""Client work as a pure function of what a client is sent: lines 3 to 8 of the paper's Algorithm 1.

The embedded engine calls it for a whole cohort at once, and a Flower node for its own clients; the same seed gives both
the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from wafl.adversaries import Adversary, AdversaryState
from wafl.algorithms.local import LocalState, LocalStep, sgd
from wafl.algorithms.messages import PARAMS, Vectors
from wafl.core.inputs import Inputs
from wafl.core.random import Key
from wafl.core.task import Problem, Task
from wafl.data.examples import Examples
from wafl.engine.batches import draw_batches
from wafl.schedule import LocalWork

PLAIN = sgd()
ADVERSARY, LOCAL = "adversary", "local"
"""The parts of a method that may let clients keep something between rounds."""

REPORT_BATCH = 256
"""How many examples a client looks at together when it reports its loss."""


@dataclass(frozen=True)
class ClientTask:
    """What clients know: the task, the adversary, the work of a round, their examples, and the local step.

    ``largest`` is the size of the largest client anywhere, here or on other nodes. Batches are padded to fit it, so
    that which clients happen to be here changes neither the number of terms in a sum nor its rounding. 0 means the
    largest client here; None means that the size is unknown, and batches are padded to their full size.
    """

    task: Task
    adversary: Adversary | None
    work: LocalWork
    examples: Examples
    largest: int | None = 0
    local: LocalStep = PLAIN

    @cached_property
    def batch_room(self) -> int:
        """How many examples a batch has room for."""
        here, wanted = int(self.examples.num_examples.max()), self.work.batch_size
        if self.largest is None:
            return wanted or here
        return min(wanted or self.largest or here, max(self.largest, here))

    @cached_property
    def report_room(self) -> int:
        """How many examples of a report are looked at together."""
        if self.largest is None:
            return REPORT_BATCH
        return min(REPORT_BATCH, max(self.largest, int(self.examples.num_examples.max())))

    def initial_memory(self, params: Tensor) -> dict[str, Tensor]:
        """What a client holds before it first takes part, by the part of the method that keeps it."""
        adversary = self.adversary.initial_memory(self.examples.shape) if self.adversary is not None else None
        return _present({ADVERSARY: adversary, LOCAL: self.local.initial_memory(params)})

    def fetch(self, rows: Tensor, lanes: LaneInput) -> tuple[Inputs, Tensor]:
        """The examples in these rows ``[G, B]``, one row of rows per group of lanes that share them.

        Floating-point values get the type of the parameters.
        """
        dtype = lanes.params.dtype
        x = self.examples.rows(rows, dtype)
        y = _each_lane(self.examples.y[rows], lanes)
        return Inputs(x, len(lanes.params)), y.to(dtype) if y.is_floating_point() else y


@dataclass(frozen=True)
class LaneInput:
    """What each lane is sent: ``params [L, P]``, its client, its scalars ``[L]`` and its key.

    ``memory`` is what the client keeps, by the part of the method that keeps it. ``vectors [L, P]`` and
    ``iterates [L]`` are those of the query. Every ``sharing`` consecutive lanes have the same client and key, and so
    the same batches.
    """

    params: Tensor
    clients: Tensor
    scalars: Mapping[str, Tensor]
    key: Key
    memory: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    vectors: Vectors = field(default_factory=dict[str, Tensor])
    iterates: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    sharing: int = 1

    def split(self, chunk: int) -> list[LaneInput]:
        """The same lanes in pieces of at most ``chunk``, without separating lanes that share their batches."""
        size = max(chunk // self.sharing, 1) * self.sharing
        return [self.take(rows) for rows in torch.arange(len(self.clients), device=self.clients.device).split(size)]

    def take(self, rows: Tensor) -> LaneInput:
        return LaneInput(
            params=self.params[rows],
            clients=self.clients[rows],
            scalars=_rows(self.scalars, rows),
            key=Key(self.key.seed[rows], self.key.round[rows], self.key.client[rows], self.key.step[rows]),
            memory=_rows(self.memory, rows),
            vectors=_rows(self.vectors, rows),
            iterates=_rows(self.iterates, rows),
            sharing=self.sharing,
        )


@dataclass(frozen=True)
class LaneOutput:
    """What each lane sends back (see :class:`wafl.algorithms.Replies`) and what its client keeps."""

    loss: Tensor
    cost: Tensor
    vectors: Vectors = field(default_factory=dict[str, Tensor])
    memory: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


def local_update(client: ClientTask, lanes: LaneInput) -> LaneOutput:
    """``theta <- theta - rate / |D| sum over the batch of the gradient of phi``, for every local step.

    A lane that has taken all its steps stays where it is while others go on.
    """
    key, first, sizes = _distinct(client, lanes)
    batches = draw_batches(client.work, key, sizes, client.batch_room)
    scalars = {name: value[:, None] for name, value in lanes.scalars.items()}
    rate, momentum, decay = (scalars[name] for name in ("learning_rate", "momentum", "weight_decay"))
    has_momentum, has_decay = bool(momentum.any()), bool(decay.any())

    params, memory = lanes.params, lanes.memory.get(ADVERSARY)
    velocity = torch.zeros_like(params)
    local = LocalState(params, params, scalars, lanes.vectors, lanes.memory.get(LOCAL))
    local = replace(local, carry=client.local.begin(local))
    iterates = dict.fromkeys(lanes.iterates, params)
    loss = cost = params.new_zeros(len(params))

    for step in range(batches.num_steps):
        weight = _each_lane(batches.weight(step, params.dtype), lanes)
        works = weight.any(1, keepdim=True)
        x, y = client.fetch(first[:, None] + batches.index[:, step], lanes)

        masks = client.task.draw_masks(lanes.key.at(step), params, x)
        problem = Problem(client.task, params, masks)
        if client.adversary is not None:
            move = client.adversary(problem, x, y, AdversaryState(lanes.scalars, lanes.key.at(step), weight, memory))
            x, y = move.inputs, move.y_adv
            if memory is not None and move.state.memory is not None:
                memory = torch.where(works, move.state.memory, memory)
            if step == 0:
                loss, cost = (weight * move.value).sum(1), (weight * move.cost).sum(1)
        elif step == 0:
            loss = (weight * problem.loss(x, y)).sum(1)

        gradient = problem.descent(x, y, weight)
        if has_decay:
            gradient = gradient + decay * params
        direction, carry = client.local.direction(gradient, local)
        if has_momentum:
            direction = velocity = momentum * velocity + direction
        params = torch.addcmul(params, direction, rate * works, value=-1.0)

        carry = {name: torch.where(works, value, local.carry[name]) for name, value in carry.items()}
        local = replace(local, params=params, carry=carry)
        for name, after in lanes.iterates.items():
            last = step + 1 == batches.num_steps  # no lane here takes more steps, though other clients may
            due = (after == step + 1) | ((after > step) & last)
            iterates[name] = torch.where(due[:, None], params, iterates[name])

    steps = _each_lane(batches.real.any(2).sum(1, keepdim=True).to(params), lanes)
    outcome = client.local.end(local, steps)
    sent = _clipped(lanes.params, params, scalars["clip_norm"]) if "clip_norm" in scalars else params
    kept = _present({ADVERSARY: memory, LOCAL: outcome.memory})
    return LaneOutput(loss, cost, {PARAMS: sent, **iterates, **outcome.vectors}, kept)


def _clipped(start: Tensor, params: Tensor, longest: Tensor) -> Tensor:
    """The parameters after an update shortened to at most ``longest``; a short enough one stays as it is."""
    length = (params - start).norm(dim=1, keepdim=True)
    short = start + (params - start) * (longest / length.clamp_min(torch.finfo(params.dtype).tiny))
    return torch.where(length > longest, short, params)


def report_loss(client: ClientTask, lanes: LaneInput) -> LaneOutput:
    """The mean of what each lane's client minimizes, over all its examples, at the parameters it was sent."""
    _, first, sizes = _distinct(client, lanes)
    problem = Problem(client.task, lanes.params)
    loss = cost = lanes.params.new_zeros(len(lanes.params))
    width = client.report_room
    whole = -(-int(sizes.max()) // width) * width
    for positions in torch.arange(whole, device=first.device).split(width):
        real = positions < sizes[:, None]
        rows = first[:, None] + torch.where(real, positions, 0)
        x, y = client.fetch(rows, lanes)
        weight = _each_lane(real.to(lanes.params) / sizes[:, None], lanes)
        if client.adversary is None:
            loss = loss + (weight * problem.loss(x, y)).sum(1)
        else:
            state = AdversaryState(lanes.scalars, lanes.key.at(int(positions[0])), weight, lanes.memory.get(ADVERSARY))
            move = client.adversary(problem, x, y, state)
            # Padding has no weight, even where its value is infinite.
            value, paid = (torch.where(weight > 0, part, 0.0) for part in (move.value, move.cost))
            loss, cost = loss + (weight * value).sum(1), cost + (weight * paid).sum(1)
    return LaneOutput(loss, cost)


def _distinct(client: ClientTask, lanes: LaneInput) -> tuple[Key, Tensor, Tensor]:
    """The key, first row and number of examples of each group of lanes that share their batches."""
    key = Key(*(part[:: lanes.sharing] for part in (lanes.key.seed, lanes.key.round, lanes.key.client, lanes.key.step)))
    clients = lanes.clients[:: lanes.sharing]
    first = client.examples.offsets[clients]
    return key, first, client.examples.offsets[clients + 1] - first


def _each_lane(values: Tensor, lanes: LaneInput) -> Tensor:
    """Values of groups of lanes, repeated for each lane."""
    return values if lanes.sharing == 1 else values.repeat_interleave(lanes.sharing, dim=0)


def _present(memory: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: value for name, value in memory.items() if value is not None}


def _rows(tensors: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in tensors.items()}
