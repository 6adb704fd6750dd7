"""What an adversary is: a value that moves each example before the gradient is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from wafl.core.inputs import Inputs, dense
from wafl.core.random import Key, Purpose
from wafl.core.task import Problem

Draw = Callable[[Key, Purpose, int], Tensor]


@dataclass(frozen=True)
class AdversaryState:
    """What an adversary is given beside the examples.

    ``scalars`` are its hyperparameters, one value a lane (a learned gamma among them), ``key`` its source of
    randomness (``[L]``, or ``[1, B]`` for examples that have keys of their own), ``weight [L, B]`` each example's
    share in its batch (none for padding), ``memory [L, M]`` what each client keeps between steps (FedRobust's map).
    """

    scalars: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    key: Key | None = None
    weight: Tensor | None = None
    memory: Tensor | None = None


@dataclass(frozen=True)
class Move:
    """Where an adversary took the examples of every lane.

    ``inputs`` are the moved examples (``x_adv`` as a plain tensor); ``value`` is what it maximised, an example (for
    WAFL phi_gamma, the robust loss); ``cost`` the transport cost it paid, ``d^p(z_adv, z)`` without gamma;
    ``concave`` whether the maximiser is known to be unique.
    """

    inputs: Tensor | Inputs
    y_adv: Tensor
    value: Tensor
    cost: Tensor
    converged: Tensor
    concave: Tensor | None = None
    state: AdversaryState = field(default_factory=AdversaryState)

    @cached_property
    def x_adv(self) -> Tensor:
        """The moved examples ``[L, B, ...]``."""
        return dense(self.inputs)


class Adversary(Protocol):
    """Called with the models and the examples of every lane; :func:`wafl.core.inputs.dense` makes x a plain tensor."""

    def __call__(
        self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: AdversaryState | None = None
    ) -> Move: ...

    def scalars(self) -> dict[str, float]:
        """Hyperparameters that may differ between lanes of one batched run."""
        ...

    def initial_memory(self, input_shape: tuple[int, ...]) -> Tensor | None:
        """What a client holds before it first takes part; None for an adversary without memory."""
        ...


@runtime_checkable
class Learning(Protocol):
    """An adversary whose scalars change with what its moves cost: WAFL's gamma, if a radius is given."""

    @property
    def learns(self) -> bool: ...

    def first_scalars(self, scalars: Mapping[str, float], lowest: float) -> dict[str, float]:
        """Before the first round; ``lowest`` is the least gamma that the model allows."""
        ...

    def next_scalars(self, scalars: Mapping[str, float], cost: float, lowest: float) -> dict[str, float]:
        """After a round whose moves cost ``cost`` on average."""
        ...


def lane_scalar(state: AdversaryState | None, name: str, value: float, like: Tensor) -> Tensor:
    """A hyperparameter as one value a lane ``[L]``: the lanes' own, or the adversary's."""
    if state is not None and name in state.scalars:
        return state.scalars[name].to(like)
    return like.new_full((len(like),), value)


def lane_key(state: AdversaryState | None, like: Tensor) -> Key:
    if state is not None and state.key is not None:
        return state.key
    lanes = torch.arange(len(like), device=like.device)
    zero = torch.zeros_like(lanes)
    return Key(zero, zero, lanes, zero)


def example_draws(draw: Draw, key: Key, batch: int, count: int) -> Tensor:
    """``count`` numbers for each of ``batch`` examples ``[L or 1, B, count]``, from a key a lane or a key an example.

    From a key a lane, examples come first in the draws, so that the padding behind them changes none.
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
