"""Your own attack: any function of a model, examples and labels."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wafl.attacks.base import Attack, Population
from wafl.base.checks import check_seed
from wafl.tasks.problem import Problem

Function = Callable[[nn.Module, Tensor, Tensor], Any]


@dataclass(frozen=True)
class OwnAttack(Attack):
    """``function(model, x, y)``, which returns where the examples ``x [N, ...]`` go.

    It is called with each model by itself, in evaluation mode, and with torch's generator at the seed. What it returns
    is taken as it is: a ball and the bounds of the data are its own affair.
    """

    function: Function
    name: str = ""

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        x = population.x[0].long() if problem.task.traits.integers else population.x[0]
        devices = [x.device] if x.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad():
            torch.manual_seed(check_seed(seed))
            found = self.function(_model(problem), x.clone(), population.y[0])
        moved = torch.as_tensor(found).detach().to(population.x)
        if moved.shape != x.shape or not bool(torch.isfinite(moved).all()):
            what = f"shape {tuple(moved.shape)}" if moved.shape != x.shape else "NaN or infinity"
            raise ValueError(f"the attack {self.describe('')} gave {what} for examples of shape {tuple(x.shape)}")
        return moved[None]

    def describe(self, unit: str) -> str:
        return self.name or getattr(self.function, "__name__", type(self.function).__name__)


def _model(problem: Problem) -> nn.Module:
    """The model of the only lane, to do with as one likes."""
    module = copy.deepcopy(problem.task.module).eval()
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in problem.task.unflatten(problem.params[0]).items():
        own[name].data = value.detach().clone()
    return module
