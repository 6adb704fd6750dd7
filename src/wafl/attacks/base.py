"""What an attack is: it moves clients' test examples, one by one or as a distribution; a function can be one."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from wafl.base.checks import check_seed
from wafl.base.extras import Package
from wafl.base.mover import Mover
from wafl.base.options import Option, options_of
from wafl.base.random import Key, Purpose, normal, uniform
from wafl.objectives.surrogate import single_lane
from wafl.results.run import Run
from wafl.tasks.problem import Problem
from wafl.tasks.task import Loss, Moved

BOUNDS = "Where moved examples must stay: 'data' (what the data declare), a box (low, high), or none (anywhere)."
SPACE = "The name of a layer whose output is moved instead of the inputs; sizes are then in its units."


@dataclass(frozen=True)
class Population:
    """Examples that are attacked together: ``x [1, N, ...]`` and their labels ``y [1, N]``.

    ``rows [N]`` are the numbers of the examples, which random draws are keyed by (default: from 0). ``weight [N]`` is
    how much each example counts; it sums to 1 (default: all the same).
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    weight: Tensor | None = None

    def numbers(self) -> Tensor:
        return torch.arange(self.x.shape[1]) if self.rows is None else self.rows

    def uniform(self, seed: int) -> Tensor:
        """Return draws from [0, 1) in the shape of ``x``, which depend on an example's number and the seed alone."""
        return self._draws(uniform, seed)

    def normal(self, seed: int) -> Tensor:
        """Return standard normal draws in the shape of ``x``, keyed as in :meth:`uniform`."""
        return self._draws(normal, seed)

    def _draws(self, draw: Callable[[Key, Purpose, int], Tensor], seed: int) -> Tensor:
        key = Key.of_examples(check_seed(seed), self.numbers(), step=1)
        return draw(key, Purpose.ATTACK, self.x[0, 0].numel()).to(self.x).view_as(self.x)

    def shares(self) -> Tensor:
        count = self.x.shape[1]
        return self.x.new_full((count,), 1.0 / count) if self.weight is None else self.weight.to(self.x)


@dataclass(frozen=True)
class Settings:
    """The options of an attack that experiment files and ``wafl evaluate`` can set; other options keep their defaults.

    ``size`` is the name of the option for the attack's size, and ``default`` the size of an attack that gives none.
    """

    size: str
    default: float
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.size, *self.others)


class Attack(Mover, ABC):
    """Something that happens to test examples: ``attack(model, x, y)`` returns the moved examples."""

    settings: ClassVar[Settings]
    """What experiment files and the command can set, if the attack is in the list of its folder."""
    pointwise: ClassVar[bool] = True
    """Whether each example is moved by itself, whatever the others are."""
    package: ClassVar[Package | None] = None
    """The optional package that the attack needs."""
    needs_classes: ClassVar[bool] = False
    """Whether the attack refuses a regression."""

    @classmethod
    def settable(cls) -> dict[str, Option]:
        """Return the options that experiment files and the command can set, the size first and with its default."""
        options = {name: options_of(cls)[name] for name in cls.settings.names}
        return {**options, cls.settings.size: replace(options[cls.settings.size], default=cls.settings.default)}

    def at_once(self, usual: int, device: torch.device) -> int:
        """How many examples to attack together on a device, where other work takes ``usual`` of them together."""
        return usual

    def __call__(self, model: nn.Module | Run, x: Any, y: Any, *, loss: Loss | None = None, seed: int = 0) -> Tensor:
        self.check_length()
        problem, inputs, labels = single_lane(model, x, y, loss)
        return self.move(problem, Population(inputs, labels), seed)[0]

    @abstractmethod
    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """The moved ``x [1, N, ...]`` of a whole population."""

    def moved(self, problem: Problem, population: Population, seed: int = 0) -> Moved:
        """Move a population for a test; unlike :meth:`move`, this may move the output of a layer."""
        return self.move(problem, population, seed)

    def weights(self, y: Any, num_classes: int | None, seed: int = 0) -> Tensor | None:
        """How much each attacked example counts, given labels ``y [N]``: ``[N]``, summing to 1; None: all the same."""
        return None

    @abstractmethod
    def describe(self, unit: str) -> str:
        """The attack in words, with the unit of its size."""


def where(space: str | None, unit: str) -> str:
    """Where an attack moves examples, in words: the unit of the data, or the layer."""
    return unit if space is None else f"at the output of {space}"


def refuse_space(attack: Attack, space: str | None) -> None:
    """Refuse to return moved examples from an attack that moves a layer's output."""
    if space is not None:
        raise ValueError(f"{attack!r} moves a layer's output and gives no examples: use wafl.evaluate or wafl.compare")


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
            result = self.function(_model(problem), x.clone(), population.y[0])
        moved = torch.as_tensor(result).detach().to(population.x)
        if moved.shape != x.shape or not bool(torch.isfinite(moved).all()):
            what = f"shape {tuple(moved.shape)}" if moved.shape != x.shape else "NaN or infinity"
            raise ValueError(f"the attack {self.describe('')} gave {what} for examples of shape {tuple(x.shape)}")
        return moved[None]

    def describe(self, unit: str) -> str:
        return self.name or getattr(self.function, "__name__", type(self.function).__name__)


def _model(problem: Problem) -> nn.Module:
    """The model of the only lane, to do with as one likes."""
    module = copy.deepcopy(problem.task.module).eval()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in problem.task.unflatten(problem.params[0]).items():
        tensors[name].data = value.detach().clone()
    return module
