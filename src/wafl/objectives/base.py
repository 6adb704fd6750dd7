"""Define objectives, which determine the loss that clients minimize, often by moving each example first."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property, reduce
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from wafl.base.mover import Mover
from wafl.base.options import Part, frozen, record
from wafl.base.random import Key, Purpose
from wafl.objectives.learned_gamma import GammaLearner
from wafl.tasks.inputs import Inputs, dense
from wafl.tasks.problem import Problem
from wafl.tasks.task import Moved


@record
class ObjectiveState:
    """The lanes' values that an objective uses in addition to the examples."""

    scalars: Annotated[
        Mapping[str, Tensor], "The hyperparameters, one value per lane; a learned gamma is one of them."
    ] = field(default_factory=dict[str, Tensor])
    key: Annotated[Key | None, "The key of random draws, ``[L]``, or ``[1, B]`` if each example has its own key."] = (
        None
    )
    weight: Annotated[Tensor | None, "Each example's share of its batch, ``[L, B]``; 0 for padding."] = None
    memory: Annotated[Tensor | None, "What each client keeps between steps, ``[L, M]``, such as FedRobust's map."] = (
        None
    )
    label_counts: Annotated[
        Tensor | None,
        "The number of examples of each class at each client, ``[L, K]``, if the objective's ``counts_labels`` is True "
        "and the labels are classes.",
    ] = None


@frozen
class Term:
    """A part of the gradient: ``sum_b share_b <slopes_b, outputs(inputs_b)>``, with the slopes held fixed."""

    inputs: Annotated[Moved, "Examples, moved or not."]
    slopes: Annotated[
        Tensor, "The derivative of the minimized quantity with respect to the outputs at these inputs, ``[L, B, C]``."
    ]
    layer: Annotated[
        str | None,
        "The name of the layer whose outputs are used, at unmoved examples; None uses the model's outputs.",
    ] = None

    def descent(self, problem: Problem, share: Tensor) -> Tensor:
        """Return the term's gradient with respect to the parameters ``[L, P]``."""
        slopes = share.view(*share.shape, *(1,) * (self.slopes.ndim - 2)) * self.slopes
        if self.layer is None:
            return problem.push(self.inputs, slopes)
        return problem.task.features_gradient(problem.params, dense(self.inputs), self.layer, slopes, problem.masks)


@record
class Move:
    """The result of an objective: the moved examples of every lane."""

    inputs: Annotated[Moved, "The moved examples; :attr:`x_adv` is the same as a plain tensor."]
    y_adv: Annotated[Tensor, "The labels of the moved examples, ``[L, B]``; the objective may have changed them."]
    value: Annotated[
        Tensor, "What the objective maximized, per example ``[L, B]``; for WAFL this is phi_gamma, the robust loss."
    ]
    cost: Annotated[Tensor, "The transport cost per example, ``d^p(z_adv, z)`` without gamma."]
    converged: Annotated[Tensor, "Whether each example's ascent reached its fixed point."]
    state: Annotated[ObjectiveState, "What the objective keeps for the next step."] = field(
        default_factory=ObjectiveState
    )
    terms: Annotated[tuple[Term, ...], "The terms to descend instead of the loss at the moved examples, if any."] = ()

    def descent(self, problem: Problem, share: Tensor) -> Tensor:
        """Return the gradient with respect to the parameters ``[L, P]``, given each example's share of its batch."""
        if not self.terms:
            return problem.descent(self.inputs, self.y_adv, share)
        return reduce(torch.add, (term.descent(problem, share) for term in self.terms))

    @cached_property
    def x_adv(self) -> Tensor:
        """The moved examples ``[L, B, ...]``; if the ball is at a layer, its moved outputs."""
        return dense(self.inputs)


class Objective(Part, Mover, ABC):
    """The loss that a client minimizes: derive from it, write ``__call__``, and override unsuitable defaults."""

    slot = "objective"
    moves: ClassVar[bool] = True
    """Whether the objective moves examples; False if it only changes the loss."""
    counts_labels: ClassVar[bool] = False
    """Whether the objective needs the number of examples of each class at a client."""

    norm: float = 2
    """The norm in which moves are measured."""
    power: int = 2
    """The power of a move's length in its cost, 1 or 2."""
    label_cost: float = math.inf
    """The price of changing a label; inf keeps labels fixed."""

    @abstractmethod
    def __call__(self, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None = None) -> Move:
        """Move the examples of every lane.

        Args:
            problem: the models, one per lane: their losses, gradients and structure.
            x: the examples ``[L, B, ...]``; :func:`wafl.tasks.inputs.dense` converts them to a plain tensor.
            y: their labels ``[L, B]``, or regression targets.
            state: the lanes' hyperparameters, randomness and memory; None uses the objective's options.
        """

    def scalars(self) -> dict[str, float]:
        """Return the hyperparameters that may differ between lanes of one batched run."""
        return {}

    def initial_memory(self, problem: Problem, x: Tensor) -> Tensor | None:
        """Return a client's memory before its first round, for a model and a blank example ``[1, 1, ...]``."""
        return None

    def check_model(self, problem: Problem) -> None:
        """Raise ValueError if these options do not suit the model."""

    @property
    def learner(self) -> GammaLearner | None:
        """The object that learns gamma from a radius; None if gamma is fixed."""
        return None

    def concavity_limit(self, problem: Problem) -> float | None:
        """Return the gamma above which the first lane's moves are certainly optimal, or None if unknown."""
        return None


def learner_of(objective: Objective | None) -> GammaLearner | None:
    """Return the object that learns an objective's gamma; None without an objective."""
    return None if objective is None else objective.learner


def move_at_layer(
    objective: Objective, layer: str, problem: Problem, x: Tensor | Inputs, y: Tensor, state: ObjectiveState | None
) -> Move:
    """Return the move of an objective whose ball is in the space of a layer's output."""
    behind = problem.behind(layer, x)
    move = objective(behind, behind.at_rest, y, state)
    return replace(move, inputs=behind.shifted(move.x_adv))


def lane_scalar(state: ObjectiveState | None, name: str, value: float, like: Tensor) -> Tensor:
    """Return a hyperparameter with one value per lane ``[L]``: from the state, or otherwise ``value``."""
    if state is not None and name in state.scalars:
        return state.scalars[name].to(like)
    return like.new_full((len(like),), value)


def lane_key(state: ObjectiveState | None, like: Tensor) -> Key:
    """Return the state's key, or otherwise a key that differs only between lanes."""
    if state is not None and state.key is not None:
        return state.key
    lanes = torch.arange(len(like), device=like.device)
    zero = torch.zeros_like(lanes)
    return Key(zero, zero, lanes, zero)


def example_draws(draw: Callable[[Key, Purpose, int], Tensor], key: Key, batch: int, count: int) -> Tensor:
    """Return ``count`` numbers for each of ``batch`` examples ``[L or 1, B, count]``, independent of padding."""
    if key.seed.ndim == 2:
        return draw(key, Purpose.START, count)
    return draw(key, Purpose.START, batch * count).view(-1, batch, count)


def random_starts(
    draw: Callable[[Key, Purpose, int], Tensor], state: ObjectiveState | None, like: Tensor, shape: tuple[int, int, int]
) -> tuple[Tensor, ...]:
    """Return random vectors for each example of each lane; ``shape`` has the examples, starts and their length."""
    batch, count, length = shape
    draws = example_draws(draw, lane_key(state, like), batch, count * length).to(like)
    return draws.unflatten(-1, (count, length)).expand(len(like), -1, -1, -1).unbind(2)


def better(one: Move, other: Move) -> Move:
    """Return the move with the larger value, example by example."""
    wins = other.value > one.value

    def pick(old: Tensor, new: Tensor) -> Tensor:
        return torch.where(wins.view(*wins.shape, *(1,) * (old.ndim - 2)), new, old)

    names = ("y_adv", "value", "cost", "converged")
    parts = {name: pick(getattr(one, name), getattr(other, name)) for name in names}
    return replace(one, inputs=pick(one.x_adv, other.x_adv), **parts)
