"""Define attacks, which move clients' test examples one by one or as a distribution, or by a function."""

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
    """A batch of examples that are attacked together: ``x [1, N, ...]`` and their labels ``y [1, N]``.

    ``rows [N]`` are the indices of the examples, which key the random draws (default: from 0). ``weight [N]`` contains
    the weights of the examples, which sum to 1 (default: equal weights).
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    weight: Tensor | None = None

    def numbers(self) -> Tensor:
        """Return the indices of the examples."""
        return torch.arange(self.x.shape[1]) if self.rows is None else self.rows

    def uniform(self, seed: int) -> Tensor:
        """Return draws from [0, 1) in the shape of ``x``, which depend only on an example's index and the seed."""
        return self._draws(uniform, seed)

    def normal(self, seed: int) -> Tensor:
        """Return standard normal draws in the shape of ``x``, keyed as in :meth:`uniform`."""
        return self._draws(normal, seed)

    def _draws(self, draw: Callable[[Key, Purpose, int], Tensor], seed: int) -> Tensor:
        key = Key.of_examples(check_seed(seed), self.numbers(), step=1)
        return draw(key, Purpose.ATTACK, self.x[0, 0].numel()).to(self.x).view_as(self.x)

    def shares(self) -> Tensor:
        """Return the weights of the examples, which sum to 1."""
        count = self.x.shape[1]
        return self.x.new_full((count,), 1.0 / count) if self.weight is None else self.weight.to(self.x)


@dataclass(frozen=True)
class Settings:
    """The options of an attack that experiment files and ``wafl evaluate`` can set; others keep their defaults.

    ``size`` is the name of the option for the attack's size, and ``default`` is its default.
    """

    size: str
    default: float
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the options, the size first."""
        return (self.size, *self.others)


class Attack(Mover, ABC):
    """A change of test examples: ``attack(model, x, y)`` returns the moved examples."""

    settings: ClassVar[Settings]
    """The options that experiment files and the command can set, if the attack is in its folder's list."""
    pointwise: ClassVar[bool] = True
    """Whether each example moves independently of the others."""
    package: ClassVar[Package | None] = None
    """The optional package that the attack needs."""
    needs_classes: ClassVar[bool] = False
    """Whether the attack requires classes and raises an error for regression."""

    @classmethod
    def settable(cls) -> dict[str, Option]:
        """Return the options that experiment files and the command can set, the size first and with its default."""
        options = {name: options_of(cls)[name] for name in cls.settings.names}
        return {**options, cls.settings.size: replace(options[cls.settings.size], default=cls.settings.default)}

    def at_once(self, usual: int, device: torch.device) -> int:
        """Return the number of examples to attack together on a device, where other work takes ``usual`` at once."""
        return usual

    def __call__(self, model: nn.Module | Run, x: Any, y: Any, *, loss: Loss | None = None, seed: int = 0) -> Tensor:
        """Return the moved examples of a model; random draws depend on the seed."""
        self.check_length()
        problem, inputs, labels = single_lane(model, x, y, loss)
        return self.move(problem, Population(inputs, labels), seed)[0]

    @abstractmethod
    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """Return the moved ``x [1, N, ...]`` of a whole population."""

    def moved(self, problem: Problem, population: Population, seed: int = 0) -> Moved:
        """Move a population for a test; unlike :meth:`move`, this may move the output of a layer."""
        return self.move(problem, population, seed)

    def weights(self, y: Any, num_classes: int | None, seed: int = 0) -> Tensor | None:
        """Return the weights ``[N]`` of the attacked examples with labels ``y [N]``, or None if all are equal.

        The weights sum to 1.
        """
        return None

    @abstractmethod
    def describe(self, unit: str) -> str:
        """Describe the attack in words, with the unit of its size."""


def where(space: str | None, unit: str) -> str:
    """Return the space in which an attack moves examples, in words: the unit of the data, or the layer."""
    return unit if space is None else f"at the output of {space}"


def refuse_space(attack: Attack, space: str | None) -> None:
    """Raise ValueError if an attack moves a layer's output, since it then has no moved examples to return."""
    if space is not None:
        raise ValueError(f"{attack!r} moves a layer's output, not examples: use wafl.evaluate or wafl.compare")


Function = Callable[[nn.Module, Tensor, Tensor], Any]


@dataclass(frozen=True)
class OwnAttack(Attack):
    """An attack by your function ``function(model, x, y)``, which returns the moved examples for ``x [N, ...]``.

    The function is called with each model separately, in evaluation mode, and with torch's generator set to the seed.
    Its result is used unchanged: the function itself must respect a ball and the bounds of the data.
    """

    function: Function
    name: str = ""

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """Return the function's result; raise ValueError if its shape is wrong or a value is not finite."""
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
        """Return the attack's name, by default the function's name."""
        return self.name or getattr(self.function, "__name__", type(self.function).__name__)


def _model(problem: Problem) -> nn.Module:
    """Return a copy of the only lane's model, which may be changed freely."""
    module = copy.deepcopy(problem.task.module).eval()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, value in problem.task.unflatten(problem.params[0]).items():
        tensors[name].data = value.detach().clone()
    return module
