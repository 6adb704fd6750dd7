"""What an adversary is: a value that moves each example before the gradient is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from wafl.core.inputs import Inputs, dense
from wafl.core.problem import Problem
from wafl.core.random import Key, Purpose
from wafl.core.task import Moved

Draw = Callable[[Key, Purpose, int], Tensor]


@dataclass(frozen=True)
class AdversaryState:
    """What an adversary is given in addition to the examples.

    Args:
        scalars: its hyperparameters, one value per lane; a learned gamma is one of them.
        key: its source of randomness, ``[L]``, or ``[1, B]`` if each example has its own key.
        weight: each example's share of its batch, ``[L, B]``; 0 for padding.
        memory: what each client keeps between steps, ``[L, M]``, such as FedRobust's map.
        label_counts: how many examples of each class the client has, ``[L, K]``, if the adversary's ``counts_labels``
            is True and the labels are classes.
        watched: whether anyone looks at the ``converged`` of the move; otherwise, an example that has moved may count
            as converged without a look.
    """

    scalars: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    key: Key | None = None
    weight: Tensor | None = None
    memory: Tensor | None = None
    label_counts: Tensor | None = None
    watched: bool = True


@dataclass(frozen=True)
class Term:
    """Part of what a model descends: ``sum_b share_b <slopes_b, outputs(inputs_b)>``, with the slopes held fixed.

    Args:
        inputs: examples, moved or not.
        slopes: the derivative of what is minimized in the outputs at these, ``[L, B, C]``.
        layer: the name of the layer whose outputs are meant, at examples that are not moved; None means the model's.
    """

    inputs: Moved
    slopes: Tensor
    layer: str | None = None

    def descent(self, problem: Problem, share: Tensor) -> Tensor:
        """Its gradient in the parameters ``[L, P]``."""
        slopes = share.view(*share.shape, *(1,) * (self.slopes.ndim - 2)) * self.slopes
        return (
            problem.push(self.inputs, slopes)
            if self.layer is None
            else problem.push_at(self.layer, self.inputs, slopes)
        )


@dataclass(frozen=True)
class Move:
    """Where an adversary moved the examples of every lane.

    Args:
        inputs: the moved examples; :attr:`x_adv` is the same as a plain tensor.
        y_adv: their labels ``[L, B]``, which may have moved too.
        value: what the adversary maximized, per example ``[L, B]``; for WAFL this is phi_gamma, the robust loss.
        cost: the transport cost it paid per example, ``d^p(z_adv, z)`` without gamma.
        converged: whether each example's ascent reached its fixed point.
        state: what the adversary keeps for the next step.
        terms: what the model descends, if that is not the loss at the moved examples.
    """

    inputs: Moved
    y_adv: Tensor
    value: Tensor
    cost: Tensor
    converged: Tensor
    state: AdversaryState = field(default_factory=AdversaryState)
    terms: tuple[Term, ...] = ()

    def descent(self, problem: Problem, share: Tensor) -> Tensor:
        """The gradient in the parameters ``[L, P]``, with the share of each example in its batch."""
        if not self.terms:
            return problem.descent(self.inputs, self.y_adv, share)
        return sum_of([term.descent(problem, share) for term in self.terms])

    @cached_property
    def x_adv(self) -> Tensor:
        """The moved examples ``[L, B, ...]``; if the ball is at a layer, its moved outputs."""
        return dense(self.inputs)


class Adversary(Protocol):
    """Called with the models and examples of all lanes; :func:`wafl.core.inputs.dense` turns x into a plain tensor."""

    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: AdversaryState | None = None) -> Move:
        """Move the examples of every lane.

        Args:
            problem: the models, one per lane: their losses, gradients and structure.
            x: the examples ``[L, B, ...]``.
            y: their labels ``[L, B]``, or regression targets.
            state: the lanes' hyperparameters, randomness and memory; None uses the adversary's own.
        """
        ...

    def scalars(self) -> dict[str, float]:
        """The hyperparameters that may differ between lanes of one batched run."""
        ...

    def initial_memory(self, input_shape: tuple[int, ...]) -> Tensor | None:
        """What a client holds before it first takes part; None for an adversary without memory."""
        ...


@runtime_checkable
class Fitted(Protocol):
    """An adversary for which clients keep something that depends on the model, such as a reference for each class."""

    def memory_for(self, problem: Problem, x: Tensor) -> Tensor:
        """What a client holds before it first takes part, for a model and an example ``[1, 1, ...]``."""
        ...


@runtime_checkable
class Learning(Protocol):
    """An adversary whose scalars change with the cost of its moves: WAFL's gamma, if a radius is given."""

    @property
    def learns(self) -> bool:
        """Whether these options leave anything to learn."""
        ...

    def warm_up(self, rounds: int) -> int:
        """After how many of so many rounds what is learned no longer depends on how many there are."""
        ...

    def first_scalars(self, scalars: Mapping[str, float], lowest: float, rounds: int) -> dict[str, float]:
        """The scalars of the first of so many rounds; ``lowest`` is the smallest gamma that the model allows."""
        ...

    def next_scalars(self, scalars: Mapping[str, float], cost: float, lowest: float, rounds: int) -> dict[str, float]:
        """The scalars after a round whose moves cost ``cost`` on average."""
        ...


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, tensors)


def move_at_layer(
    adversary: Adversary, layer: str, problem: Problem, x: Tensor | Inputs, y: Tensor, state: AdversaryState | None
) -> Move:
    """What an adversary does if the ball lives in the space of a layer's output."""
    behind = problem.behind(layer, x)
    move = adversary(behind, behind.at_rest, y, state)
    return replace(move, inputs=behind.shifted(move.x_adv))


def lane_scalar(state: AdversaryState | None, name: str, value: float, like: Tensor) -> Tensor:
    """A hyperparameter with one value per lane ``[L]``: from the state, or otherwise the adversary's own ``value``."""
    if state is not None and name in state.scalars:
        return state.scalars[name].to(like)
    return like.new_full((len(like),), value)


def lane_key(state: AdversaryState | None, like: Tensor) -> Key:
    """The state's key, or otherwise one that differs only between lanes."""
    if state is not None and state.key is not None:
        return state.key
    lanes = torch.arange(len(like), device=like.device)
    zero = torch.zeros_like(lanes)
    return Key(zero, zero, lanes, zero)


def example_draws(draw: Draw, key: Key, batch: int, count: int) -> Tensor:
    """``count`` numbers for each of ``batch`` examples ``[L or 1, B, count]``, from one key per lane or per example.

    With one key per lane, draws go example by example, so padding at the end of a batch changes none of them.
    """
    if key.seed.ndim == 2:
        return draw(key, Purpose.START, count)
    return draw(key, Purpose.START, batch * count).view(-1, batch, count)


def better(one: Move, other: Move) -> Move:
    """The move with the larger value, example by example."""
    wins = other.value > one.value

    def pick(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(wins.view(*wins.shape, *(1,) * (old.ndim - 2)), new, old)

    return replace(
        one,
        inputs=pick(one.x_adv, other.x_adv),
        y_adv=pick(one.y_adv, other.y_adv),
        value=pick(one.value, other.value),
        cost=pick(one.cost, other.cost),
        converged=pick(one.converged, other.converged),
    )
