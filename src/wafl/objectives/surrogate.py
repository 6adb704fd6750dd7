"""Compute phi_gamma of given examples: value, maximizer, achieved radius, concavity."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from wafl.base.checks import check_seed
from wafl.base.random import Key
from wafl.objectives import Move, Objective, Wasserstein
from wafl.objectives.base import ObjectiveState
from wafl.tasks.fitness import check_fitness
from wafl.tasks.layout import Layout
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Loss


class Trained(Protocol):
    """A model with its training loss, such as a :class:`wafl.Run`."""

    @property
    def module(self) -> nn.Module:
        """The model."""
        ...

    @property
    def layout(self) -> Layout:
        """The layout of its parameters."""
        ...

    @property
    def loss(self) -> Loss:
        """The loss of its training."""
        ...


@dataclass(frozen=True)
class RobustLoss:
    """The robust loss: one ``value``, ``x_adv`` and ``y_adv`` per example.

    ``achieved_radius`` is the root mean cost of the moves. ``converged`` states for each example whether the ascent
    reached its fixed point. ``concave`` states whether this point is certain to be the maximum: True if the inner
    problem is concave, False if it is not (``value`` is then a lower bound), None if the model's curvature is unknown.
    """

    value: Tensor
    x_adv: Tensor
    y_adv: Tensor
    achieved_radius: float
    converged: Tensor
    concave: bool | None


def robust_loss(
    model: nn.Module | Trained,
    x: Any,
    y: Any,
    *,
    gamma: float,
    norm: float = 2,
    power: int = 2,
    label_cost: float = float("inf"),
    steps: int = 200,
    tolerance: float = 1e-5,
    restarts: int = 0,
    bounds: tuple[float, float] | None = None,
    loss: Loss | None = None,
    seed: int = 0,
) -> RobustLoss:
    """Compute ``phi_gamma(z) = sup over z' of loss(z') - gamma d^p(z', z)`` for each example z.

    Args:
        model: a model, or a run, whose loss is the default.
        x: the examples ``[N, ...]``.
        y: their labels ``[N]``, or regression targets.
        gamma: the price of transport; a smaller gamma gives a larger ball.
        norm: the ground norm, 1, 2 or inf.
        power: the order of the transport cost, 1 or 2.
        label_cost: the price of changing a label; inf keeps labels fixed.
        steps: the maximum number of steps of the inner ascent.
        tolerance: the distance from its fixed point at which an example stops, relative to its move; 0 takes all steps.
        restarts: the number of random starts in addition to the example itself.
        bounds: a box ``(low, high)`` that limits moved examples.
        loss: the loss to use instead of the run's loss; cross-entropy for a plain model.
        seed: the seed of the random starts.

    >>> import torch, wafl
    >>> model = torch.nn.Linear(2, 2)
    >>> robust = robust_loss(model, torch.zeros(3, 2), torch.tensor([0, 1, 0]), gamma=10.0)
    >>> robust.concave
    True
    """
    objective = Wasserstein(gamma, None, norm, power, label_cost, steps, tolerance, restarts, bounds)
    objective.check_length()
    problem, inputs, labels = single_lane(model, x, y, loss)
    move = move_one_lane(objective, problem, inputs, labels, seed)
    concave = objective.concave(problem, problem.params.new_full((1,), gamma))
    return RobustLoss(
        value=move.value[0],
        x_adv=move.x_adv[0],
        y_adv=move.y_adv[0],
        achieved_radius=float(move.cost.mean()) ** (1.0 / power),
        converged=move.converged[0],
        concave=None if concave is None else bool(concave[0]),
    )


def single_lane(
    model: nn.Module | Trained, x: Any, y: Any, loss: Loss | None = None, num_classes: int | None = None
) -> tuple[Problem, Tensor, Tensor]:
    """Return a model and arrays as a problem of one lane with its inputs and labels.

    The default loss is the run's loss, or cross-entropy.
    """
    layout = None
    if not isinstance(model, nn.Module):
        loss = loss if loss is not None else model.loss
        model, layout = model.module, model.layout
    device = next((value.device for value in model.parameters()), torch.device("cpu"))
    task = make_task(model, loss if loss is not None else "cross_entropy", device, layout)
    params = task.initial()
    inputs, labels = torch.as_tensor(x).to(params), torch.as_tensor(y).to(params.device)
    if len(inputs) != len(labels) or len(inputs) == 0:
        raise ValueError(f"{len(inputs)} examples and {len(labels)} labels: give the same number of each, at least one")
    if not bool(torch.isfinite(inputs).all()):
        raise ValueError("x holds NaN or infinity")
    if labels.is_floating_point():
        labels = labels.to(params)
    else:
        labels, num_classes = labels.to(torch.int64), max(num_classes or 0, int(labels.max()) + 1)
        if int(labels.min()) < 0:
            raise ValueError(f"y holds the label {int(labels.min())}: labels start at 0")
    problem = Problem(task, params[None])
    check_fitness(problem, inputs[None, :1], labels[None, :1], num_classes)
    return problem, inputs[None], labels[None]


def move_one_lane(objective: Objective, problem: Problem, x: Tensor, y: Tensor, seed: int = 0) -> Move:
    """Return the move of one lane's examples, with random starts from the seed."""
    check_seed(seed)
    key = Key(*(torch.tensor([value], device=x.device) for value in (seed, 0, 0, 0)))
    return objective(problem, x, y, ObjectiveState(key=key))
