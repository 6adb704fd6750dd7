"""Compute a client's work as a pure function of its input: lines 3 to 8 of the paper's Algorithm 1.

The embedded engine calls it for a whole cohort at once, and a Flower node calls it for its clients. With the same seed,
both get the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from wafl.base.random import Key
from wafl.objectives import ObjectiveState
from wafl.parts.messages import GRADIENT, PARAMS, Vectors
from wafl.tasks.problem import Problem
from wafl.train.batches import draw_batches
from wafl.train.client_task import LOCAL, OBJECTIVE, STATISTICS, ClientTask, LaneInput, Rows, each_lane, mapped, present
from wafl.train.step import Batch, Carry, Eager, begin, joined, local_state, smoothed

EAGER = Eager()


@dataclass(frozen=True)
class LaneOutput(Rows):
    """The reply of each lane (see :class:`wafl.parts.messages.Replies`) and its client's new memory."""

    loss: Tensor
    cost: Tensor
    vectors: Vectors = field(default_factory=dict[str, Tensor])
    memory: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


def local_update(client: ClientTask, lanes: LaneInput, take_step: Eager = EAGER) -> LaneOutput:
    """Return each lane's reply after local steps: ``theta <- theta - rate / |D| sum over the batch of grad phi``.

    Lanes with more steps come first. A lane that has finished its steps drops out while others continue.
    """
    lanes = _with_statistics(client, lanes)
    key, first, sizes = _distinct(client, lanes)
    batches = draw_batches(client.work, key, sizes, client.batch_room(int(sizes[0])))
    shares, least = batches.shares(lanes.params.dtype), 2 if client.pairs and lanes.sharing == 1 else 1

    rows = (first[:, None] + batches.index.transpose(0, 1)).contiguous().unbind()
    numbers = torch.arange(len(rows), device=sizes.device)[:, None].expand(-1, len(lanes.params)).unbind()
    numbered = torch.arange(len(lanes.params), device=sizes.device)
    some, carry, behind = lanes, begin(client, lanes), list[Carry]()
    for number in range(len(rows)):
        working = batches.working(number)
        groups = min(max(take_step.room(working), least), len(batches.steps))
        if groups * lanes.sharing < len(some.params):
            here = slice(groups * lanes.sharing)
            behind.append(carry.take(slice(here.stop, None)))
            some, carry = lanes.take(here), carry.take(here)
        batch = Batch(
            rows=rows[number][:groups],
            share=each_lane(shares[:groups, number], some),
            step=numbers[number][: len(some.params)],
            live=None if working >= groups else numbered[: len(some.params)] < working * lanes.sharing,
            first=number == 0,
        )
        carry = take_step(client, some, carry, batch)
    if behind or take_step.reuses:
        carry = joined([carry, *reversed(behind)])

    steps = each_lane(torch.tensor(batches.steps, device=sizes.device)[:, None].to(lanes.params), lanes)
    outcome = client.local.end(local_state(lanes, carry), steps)
    trained, clip = slice(client.task.num_params), lanes.scalars.get("clip_norm")
    sent = carry.params
    if clip is not None:
        short = shortened(lanes.params[:, trained], sent[:, trained], clip[:, None])
        sent = torch.cat([short, sent[:, trained.stop :]], dim=1)
    statistics = carry.params[:, client.kept_positions] if client.kept_positions else None
    left = present({OBJECTIVE: carry.memory, LOCAL: outcome.memory, STATISTICS: statistics})
    loss = carry.loss
    if client.judges_ends:
        loss = report_loss(client, replace(lanes, params=carry.params, memory=left)).loss
    return LaneOutput(loss, carry.cost, {PARAMS: sent, **carry.iterates, **outcome.vectors}, left)


def _with_statistics(client: ClientTask, lanes: LaneInput) -> LaneInput:
    """Return the lanes, starting with the BatchNorm parameters that their clients have kept."""
    kept = lanes.memory.get(STATISTICS)
    if kept is None:
        return lanes
    params, positions = lanes.params.clone(), client.kept_positions
    params[:, positions] = torch.where(kept.isnan(), params[:, positions], kept)
    return replace(lanes, params=params)


def shortened(start: Tensor, params: Tensor, longest: Tensor) -> Tensor:
    """Return the parameters after an update shortened to at most ``longest``; shorter updates are unchanged."""
    length = (params - start).norm(dim=1, keepdim=True)
    short = start + (params - start) * (longest / length.clamp_min(torch.finfo(params.dtype).tiny))
    return torch.where(length > longest, short, params)


def report_loss(client: ClientTask, lanes: LaneInput, *, with_gradient: bool = False) -> LaneOutput:
    """Return the mean objective over all examples of each lane's client, at the received parameters."""
    lanes = _with_statistics(client, lanes)
    _, first, sizes = _distinct(client, lanes)
    counts: list[int] = sizes.tolist()
    loss, cost = (lanes.params.new_zeros(len(lanes.params)) for _ in range(2))
    gradient = torch.zeros_like(lanes.params) if with_gradient else None
    width = client.report_room(counts[0])
    least = 2 if client.pairs and lanes.sharing == 1 else 1
    for start in range(0, counts[0], width):
        groups = min(max(sum(count > start for count in counts), least), len(counts))
        here = slice(groups * lanes.sharing)
        some, positions = lanes.take(here), torch.arange(start, start + width, device=first.device)
        real = positions < sizes[:groups, None]
        rows = first[:groups, None] + torch.where(real, positions, 0)
        x, y = client.fetch(rows, some)
        weight = each_lane(real.to(lanes.params) / sizes[:groups, None], some)
        problem = Problem(client.task, some.params)
        if client.objective is None:
            move = None
            loss[here] += (weight * problem.loss(x, y)).sum(1)
        else:
            kept, labels = some.memory.get(OBJECTIVE), client.label_counts(some.clients)
            state = ObjectiveState(some.scalars, some.key.at(start), weight, kept, labels)
            move = client.objective(problem, x, y, state)
            # Padding has no weight, even where its value is infinite.
            value, paid = (torch.where(weight > 0, part, 0.0) for part in (move.value, move.cost))
            loss[here] += (weight * value).sum(1)
            cost[here] += (weight * paid).sum(1)
        if gradient is not None:
            descent = problem.descent(x, y, weight) if move is None else move.descent(problem, weight)
            smoothing = some.columns.get("label_smoothing")
            gradient[here] += smoothed(descent, problem, move or (x, y), weight, smoothing)
    if gradient is None:
        return LaneOutput(loss, cost)
    return LaneOutput(loss, cost, {GRADIENT: gradient + lanes.scalars["weight_decay"][:, None] * lanes.params})


def _distinct(client: ClientTask, lanes: LaneInput) -> tuple[Key, Tensor, Tensor]:
    """Return the key, first row and number of examples of each group of lanes that share their batches."""
    key = mapped(lambda part: part[:: lanes.sharing], lanes.key)
    clients = lanes.clients[:: lanes.sharing]
    first = client.examples.offsets[clients]
    sizes = client.examples.offsets[clients + 1] - first
    client.examples.expect(first, sizes)
    return key, first, sizes
