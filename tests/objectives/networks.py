"""Small networks, random batches, and gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from wafl.base.random import Key
from wafl.objectives import ObjectiveState
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

CLASSES, FEATURES, BATCH = 4, 5, 6
MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(FEATURES, CLASSES),
    "layers": lambda: nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES)),
    "any": lambda: nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(12, CLASSES)
    ),
}


def drawn(model: nn.Module) -> tuple[Problem, Tensor, Tensor, ObjectiveState]:
    """Two lanes with different parameters, examples, shares and counts of classes."""
    generator = torch.Generator().manual_seed(1)
    task = make_task(model.double(), "cross_entropy")
    params = torch.randn(2, task.num_params, generator=generator, dtype=torch.float64) * 0.6
    x = torch.randn(2, BATCH, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (2, BATCH), generator=generator)
    share = torch.rand(2, BATCH, generator=generator, dtype=torch.float64)
    lanes = torch.arange(2)
    key = Key(lanes, lanes, lanes, lanes)
    counts = torch.tensor([[3, 0, 5], [1, 1, 7]])
    return Problem(task, params), x, y, ObjectiveState({}, key, share / share.sum(1, keepdim=True), None, counts)


def by_autograd(problem: Problem, objective: Callable[[Callable[[Tensor], Tensor], int], Tensor]) -> Tensor:
    """The gradient in each lane's parameters of an objective of its outputs."""
    gradients = []
    for lane, flat in enumerate(problem.params):
        leaf = flat.clone().requires_grad_()
        gradients.append(torch.autograd.grad(objective(lambda x, leaf=leaf: problem.task.call(leaf, x), lane), leaf)[0])
    return torch.stack(gradients)
