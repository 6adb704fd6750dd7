"""Client work as a pure function of what a client is sent: lines 3 to 8 of the paper's Algorithm 1.

The embedded engine calls it for a whole cohort at once, and a Flower node for its own clients; the same seed gives both
the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from wafl.adversaries import Adversary, AdversaryState, Move
from wafl.algorithms.local import LocalState, LocalStep, sgd
from wafl.algorithms.messages import PARAMS, Vectors
from wafl.core.inputs import Inputs
from wafl.core.random import Key
from wafl.core.statistics import PER_CLIENT
from wafl.core.task import Problem, Task
from wafl.data.examples import Examples
from wafl.engine.batches import draw_batches, room_for
from wafl.schedule import LocalWork

PLAIN = sgd()
ADVERSARY, LOCAL, STATISTICS = "adversary", "local", "statistics"
"""What may let clients keep something between rounds: parts of a method, and BatchNorm."""

REPORT_BATCH = 256
"""How many examples a client looks at together when it reports its loss."""


@dataclass(frozen=True)
class ClientTask:
    """What clients know: the task, the adversary, the work of a round, their examples, and the local step.

    ``largest`` is the size of the largest client anywhere, here or on other nodes, which no batch needs more room than.
    0 means the largest client here; None means that the size is unknown.
    """

    task: Task
    adversary: Adversary | None
    work: LocalWork
    examples: Examples
    largest: int | None = 0
    local: LocalStep = PLAIN

    @cached_property
    def sizes(self) -> list[int]:
        """The number of examples of each client here."""
        return self.examples.num_examples.tolist()

    def batch_room(self, size: int) -> int:
        """How many examples a batch of a client with ``size`` examples has room for."""
        return self._room(size, self.work.batch_size)

    def report_room(self, size: int) -> int:
        """How many examples such a client looks at together when it reports its loss."""
        return self._room(size, REPORT_BATCH)

    def _room(self, size: int, wanted: int | None) -> int:
        largest = math.inf if self.largest is None else self.largest or max(self.sizes)
        return int(min(room_for(size), wanted or math.inf, max(largest, size)))

    @property
    def pairs(self) -> bool:
        """Whether a lane must not be alone, to round as among others: an ascent makes rounding errors grow."""
        at_layer = getattr(self.adversary, "space", None) is not None
        return self.adversary is not None and (at_layer or not self.task.steady)

    def initial_memory(self, params: Tensor) -> dict[str, Tensor]:
        """What a client holds before it first takes part, by the part of the method that keeps it."""
        adversary = self.adversary.initial_memory(self.examples.shape) if self.adversary is not None else None
        # NaN stands for the server's statistics, where a client begins.
        unknown = params.new_full((self.task.num_statistics,), torch.nan) if self.keeps_statistics else None
        return _present({ADVERSARY: adversary, LOCAL: self.local.initial_memory(params), STATISTICS: unknown})

    @property
    def keeps_statistics(self) -> bool:
        """Whether each client keeps the running statistics of its BatchNorm layers."""
        return self.work.statistics == PER_CLIENT and self.task.num_statistics > 0

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
    the same batches. Lanes with more examples come first.
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
        return [self.take(slice(place, place + size)) for place in range(0, len(self.clients), size)]

    def take(self, rows: Tensor | slice) -> LaneInput:
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

    def take(self, rows: slice) -> LaneOutput:
        return LaneOutput(self.loss[rows], self.cost[rows], _rows(self.vectors, rows), _rows(self.memory, rows))


def local_update(client: ClientTask, lanes: LaneInput) -> LaneOutput:
    """``theta <- theta - rate / |D| sum over the batch of the gradient of phi``, for every local step.

    Lanes with more steps come first; one that has taken all of its steps is left behind while others go on.
    """
    lanes = _with_own_statistics(lanes)
    key, first, sizes = _distinct(client, lanes)
    batches = draw_batches(client.work, key, sizes, client.batch_room(int(sizes[0])))
    trained, has_statistics = slice(client.task.num_params), client.task.num_statistics > 0
    has_momentum, has_decay = (bool(lanes.scalars[name].any()) for name in ("momentum", "weight_decay"))
    least = 2 if client.pairs and lanes.sharing == 1 else 1

    params, velocity = lanes.params.clone(), torch.zeros_like(lanes.params) if has_momentum else None
    memory = lanes.memory[ADVERSARY].clone() if ADVERSARY in lanes.memory else None
    carry = {name: value.clone() for name, value in client.local.begin(_local_state(lanes, params)).items()}
    iterates = {name: lanes.params.clone() for name in lanes.iterates}
    loss = cost = params.new_zeros(len(params))

    shares, some = batches.shares(params.dtype), lanes
    for step in range(batches.num_steps):
        groups = max(batches.working(step), least)
        here, done = slice(groups * lanes.sharing), slice(batches.working(step) * lanes.sharing)
        if here.stop < len(some.params):
            some = lanes.take(here)
        weight = _each_lane(shares[:groups, step], some)
        x, y = client.fetch(first[:groups, None] + batches.index[:groups, step], some)

        masks = client.task.draw_masks(some.key.at(step), params[here], x)
        problem = Problem(client.task, params[here], masks)
        if client.adversary is not None:
            kept = None if memory is None else memory[here]
            move = client.adversary(problem, x, y, AdversaryState(some.scalars, some.key.at(step), weight, kept))
            x, y = move.inputs, move.y_adv
            if memory is not None and move.state.memory is not None:
                memory[done] = move.state.memory[done]
            if step == 0:
                loss, cost = (weight * move.value).sum(1), _paid(move, weight)
        elif step == 0:
            loss = (weight * problem.loss(x, y)).sum(1)

        gradient = problem.descent(x, y, weight)
        statistics = client.task.next_statistics(problem.params, x, weight, masks) if has_statistics else None
        local = _local_state(some, problem.params, _rows(carry, here))
        if has_decay:
            gradient = gradient + local.scalars["weight_decay"] * local.params
        direction, carried = client.local.direction(gradient, local)
        if velocity is not None:
            direction = velocity[here].mul_(local.scalars["momentum"]).add_(direction)
        params[done].addcmul_(direction[done], local.scalars["learning_rate"][done], value=-1.0)
        if statistics is not None:
            params[done, trained.stop :] = statistics[done]

        for name, value in carried.items():
            carry[name][done] = value[done]
        for name, after in some.iterates.items():  # the params after so many steps, or after the lane's last
            due = (after > step)[done, None]
            iterates[name][done] = torch.where(due, params[done], iterates[name][done])

    steps = _each_lane(torch.tensor(batches.steps, device=params.device)[:, None].to(params), lanes)
    outcome = client.local.end(_local_state(lanes, params, carry), steps)
    clip = lanes.scalars.get("clip_norm")
    sent = params
    if clip is not None:
        short = _clipped(lanes.params[:, trained], params[:, trained], clip[:, None])
        sent = torch.cat([short, params[:, trained.stop :]], dim=1)
    own = params[:, trained.stop :] if client.keeps_statistics else None
    left = _present({ADVERSARY: memory, LOCAL: outcome.memory, STATISTICS: own})
    return LaneOutput(loss, cost, {PARAMS: sent, **iterates, **outcome.vectors}, left)


def _paid(move: Move, weight: Tensor) -> Tensor:
    """The mean cost of each lane's moves; infinite if no example took a step and none has settled: that overflowed."""
    stuck = ((weight == 0) | ((move.cost == 0) & ~move.converged)).all(1) & (weight > 0).any(1)
    return torch.where(stuck, math.inf, (weight * move.cost).sum(1))


def _with_own_statistics(lanes: LaneInput) -> LaneInput:
    """The same lanes, which begin with the statistics that their clients have kept."""
    kept = lanes.memory.get(STATISTICS)
    if kept is None:
        return lanes
    trained, sent = lanes.params.tensor_split([-kept.shape[1]], dim=1)
    return replace(lanes, params=torch.cat([trained, torch.where(kept.isnan(), sent, kept)], dim=1))


def _local_state(lanes: LaneInput, params: Tensor, carry: Mapping[str, Tensor] | None = None) -> LocalState:
    scalars = {name: value[:, None] for name, value in lanes.scalars.items()}
    return LocalState(lanes.params, params, scalars, lanes.vectors, lanes.memory.get(LOCAL), carry or {})


def _clipped(start: Tensor, params: Tensor, longest: Tensor) -> Tensor:
    """The parameters after an update shortened to at most ``longest``; a short enough one stays as it is."""
    length = (params - start).norm(dim=1, keepdim=True)
    short = start + (params - start) * (longest / length.clamp_min(torch.finfo(params.dtype).tiny))
    return torch.where(length > longest, short, params)


def report_loss(client: ClientTask, lanes: LaneInput) -> LaneOutput:
    """The mean of what each lane's client minimizes, over all its examples, at the parameters it was sent."""
    lanes = _with_own_statistics(lanes)
    _, first, sizes = _distinct(client, lanes)
    counts: list[int] = sizes.tolist()
    loss, cost = (lanes.params.new_zeros(len(lanes.params)) for _ in range(2))
    width = client.report_room(counts[0])
    least = 2 if client.pairs and lanes.sharing == 1 else 1
    for begin in range(0, counts[0], width):
        groups = min(max(sum(count > begin for count in counts), least), len(counts))
        here = slice(groups * lanes.sharing)
        some, positions = lanes.take(here), torch.arange(begin, begin + width, device=first.device)
        real = positions < sizes[:groups, None]
        rows = first[:groups, None] + torch.where(real, positions, 0)
        x, y = client.fetch(rows, some)
        weight = _each_lane(real.to(lanes.params) / sizes[:groups, None], some)
        problem = Problem(client.task, some.params)
        if client.adversary is None:
            loss[here] += (weight * problem.loss(x, y)).sum(1)
        else:
            state = AdversaryState(some.scalars, some.key.at(begin), weight, some.memory.get(ADVERSARY))
            move = client.adversary(problem, x, y, state)
            # Padding has no weight, even where its value is infinite.
            value, paid = (torch.where(weight > 0, part, 0.0) for part in (move.value, move.cost))
            loss[here] += (weight * value).sum(1)
            cost[here] += (weight * paid).sum(1)
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


def _rows(tensors: Mapping[str, Tensor], rows: Tensor | slice) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in tensors.items()}
