"""Take one local step of every lane: lines 4 to 7 of the paper's Algorithm 1, as a pure function.

It never reads a tensor's value, so a GPU never waits for the CPU, and a step can be captured.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from wafl.local import LocalState, LocalStep
from wafl.objectives import Move, ObjectiveState
from wafl.tasks.inputs import Inputs
from wafl.tasks.problem import Problem
from wafl.train.client_task import LOCAL, OBJECTIVE, ClientTask, LaneInput, Rows, mapped


@dataclass(frozen=True)
class Carry(Rows):
    """The lanes' state between steps; ``loss`` is of the first step, ``cost`` of the first or the mean so far."""

    params: Tensor
    loss: Tensor
    cost: Tensor
    decay: Tensor | None
    velocity: Tensor | None
    memory: Tensor | None
    local: Mapping[str, Tensor]
    iterates: Mapping[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """The input of a step: ``rows [G, B]`` of examples, their ``share [L, B]``, and the ``live`` lanes."""

    rows: Tensor
    share: Tensor
    step: Tensor
    live: Tensor | None
    first: bool


def begin(client: ClientTask, lanes: LaneInput) -> Carry:
    """Return the carry before the first step."""
    params, none = lanes.params, lanes.params.new_zeros(len(lanes.params))
    momentum, decay = (lanes.scalars[name] for name in ("momentum", "weight_decay"))
    carry = Carry(
        params=params,
        loss=none,
        cost=none,
        decay=decay[:, None] if bool(decay.any()) else None,
        velocity=torch.zeros_like(params) if bool(momentum.any()) else None,
        memory=lanes.memory.get(OBJECTIVE),
        local={},
        iterates=dict.fromkeys(lanes.iterates, params),
    )
    return replace(carry, local=client.local.begin(local_state(lanes, carry)))


def step(client: ClientTask, lanes: LaneInput, carry: Carry, batch: Batch, *, over: bool = False) -> Carry:
    """Return the carry after one step down the gradient of the moved batch; ``over`` may overwrite parameters."""
    key, share = replace(lanes.key, step=batch.step), batch.share
    x, y = client.fetch(batch.rows, lanes)
    x = client.varied(x, lanes, key)
    masks = client.task.draw_masks(key, carry.params, x)
    counts = None if client.objective is None else client.label_counts(lanes.clients)
    state = ObjectiveState(lanes.scalars, key, share, carry.memory, counts)

    def descent(params: Tensor, first: bool = False) -> tuple[Tensor, Tensor | None, Move | None]:
        """Return the gradient at these parameters, where examples are moved; if ``first``, also the losses."""
        # In a first step lanes may share their parameters, which are then rescaled once for all.
        shared = first and client.task.rescales
        problem = Problem(client.task, lanes.params if shared else params, masks)
        move = None if client.objective is None else client.objective(problem, x, y, state)
        if move is not None:
            losses, gradient = move.value, move.descent(problem, share)
        elif first:
            losses, gradient = problem.loss_and_descent(x, y, share)
        else:
            losses, gradient = None, problem.descent(x, y, share)
        gradient = smoothed(gradient, problem, move or (x, y), share, lanes.columns.get("label_smoothing"))
        return gradient if carry.decay is None else gradient + carry.decay * params, losses, move

    gradient, losses, move = descent(carry.params, batch.first)
    loss, cost, memory = carry.loss, carry.cost, carry.memory
    if batch.first and losses is not None:
        loss = (share * losses).sum(1)
    if client.objective is not None and move is not None:
        if memory is not None and move.state.memory is not None:
            memory = move.state.memory
        if batch.first:
            cost = _paid(move, share)
        elif (learner := client.objective.learner) is not None and learner.averages_cost:
            cost = cost + (_paid(move, share) - cost) / (batch.step + 1)

    again = _counted(client.local, lambda params: descent(params)[0])
    local = replace(local_state(lanes, carry), gradient_at=again)
    direction, carried = client.local.direction(gradient, local)
    if direction.shape != gradient.shape:
        raise ValueError(
            f"direction() of local={client.local} returned shape {list(direction.shape)}, but the gradient has shape "
            f"{list(gradient.shape)}: return one row per lane; use keepdim=True in sums over columns"
        )
    same = direction is gradient
    del gradient  # if nothing else needs it, its memory can hold the next parameters of large models
    velocity = carry.velocity
    if velocity is not None:
        direction = velocity = velocity * local.scalars["momentum"] + direction
    # The parameters reuse a gradient's memory: large models would otherwise wait for new memory in every step.
    room = direction if same and velocity is None and not carried else None
    if over and batch.live is None and client.task.num_statistics == 0 and not carried:
        room = carry.params
    params = torch.addcmul(carry.params, direction, local.scalars["learning_rate"], value=-1.0, out=room)
    if client.task.num_statistics > 0:
        statistics = client.task.next_statistics(carry.params, x if move is None else move.inputs, share, masks)
        params = torch.cat([params[:, : client.task.num_params], statistics], dim=1)

    after = Carry(params, loss, cost, carry.decay, velocity, memory, {**carry.local, **carried}, carry.iterates)
    if batch.live is not None:
        after = _chosen(batch.live, after, carry)
    if not lanes.iterates:
        return after
    # The parameters after this number of steps, or after the lane's last step.
    due = {name: (steps > batch.step)[:, None] for name, steps in lanes.iterates.items()}
    kept = {name: torch.where(due[name], after.params, value) for name, value in carry.iterates.items()}
    return replace(after, iterates=kept)


class Eager:
    """A function that computes one step of lanes, without recording."""

    reuses: ClassVar[bool] = False
    """Whether a later step overwrites the memory of a result."""
    __call__ = staticmethod(step)

    def room(self, working: int) -> int:
        """Return the number of lanes to compute if ``working`` lanes take the step."""
        return working


def smoothed(
    gradient: Tensor, problem: Problem, at: Move | tuple[Inputs, Tensor], share: Tensor, part: Tensor | None
) -> Tensor:
    """Add the gradient of ``part (s_y - mean of s)``, label smoothing for cross-entropy of outputs s."""
    if part is None:
        return gradient
    inputs, y = (at.inputs, at.y_adv) if isinstance(at, Move) else at
    classes = problem.outputs(inputs).shape[-1]
    slopes = one_hot(y, classes).to(share) - 1.0 / classes
    return gradient + problem.push(inputs, (part * share)[..., None] * slopes)


def local_state(lanes: LaneInput, carry: Carry) -> LocalState:
    """Return the input of the local step."""
    return LocalState(lanes.params, carry.params, lanes.columns, lanes.vectors, lanes.memory.get(LOCAL), carry.local)


def joined(carries: Sequence[Carry]) -> Carry:
    """Return the lanes of several carries in one carry, as a copy."""
    return mapped(lambda *values: torch.cat(values), *carries)


def _counted(local: LocalStep, gradient_at: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the function with a limit on calls: the number that a local step declares for cost and memory."""
    numbers = itertools.count(2)

    def counted(params: Tensor) -> Tensor:
        if (number := next(numbers)) > local.gradients:
            raise ValueError(
                f"local={local} asks for gradient {number} of a step, but declares gradients = {local.gradients}: "
                f"set gradients = {number} in its class"
            )
        return gradient_at(params)

    return counted


def _paid(move: Move, share: Tensor) -> Tensor:
    """Return the mean cost of each lane's moves.

    The cost is infinite after an overflow, when no example took a step and none has converged.
    """
    stuck = ((share == 0) | ((move.cost == 0) & ~move.converged)).all(1) & (share > 0).any(1)
    return torch.where(stuck, math.inf, (share * move.cost).sum(1))


def _chosen(live: Tensor, after: Carry, before: Carry) -> Carry:
    """Return the carry after a step in the live lanes, and the previous carry in the others."""

    def chosen(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(live.view(-1, *(1,) * (new.ndim - 1)), new, old)

    return mapped(chosen, after, before)
