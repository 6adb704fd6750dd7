"""Define the base class of shifts that move examples, and the label shift, which changes only weights."""

import math
from abc import abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from wafl.attacks.base import BOUNDS, Attack, Population, Settings
from wafl.base.bounds import DATA, Bounds, check_bounds, in_words, is_finite
from wafl.base.checks import check_seed
from wafl.base.options import Box, Range, check_options, frozen, maker
from wafl.base.random import Key, Purpose, uniform
from wafl.tasks.problem import Problem

PURPOSE = Purpose.SHIFT
_CHUNK = 2**20


class Draw(IntEnum):
    """The step of a shift's key, which makes the draws of shifts independent; 0 is for drawing clients."""

    AFFINE = 1
    GAUSSIAN = 2
    SHOT = 3
    LABELS = 4
    OCCLUSION = 5
    PLACEMENT = 6


def Severity(highest: float = math.inf) -> Range:
    """Return the range of a severity."""
    return Range(0.0, highest, ": 0 leaves the data unchanged, and larger values move them farther")


@frozen
class Shift(Attack):
    """A change to the examples that needs no model; severity 0 is exactly the identity."""

    settings: ClassVar[Settings] = Settings("severity", 0.5, ("bounds",))

    severity: Annotated[float, Severity(), "The size of the shift; 0 is the identity."]
    bounds: Annotated[Bounds, Box(), BOUNDS] = DATA

    needs_bounds: ClassVar[bool] = False
    """Whether the shift must know the darkest and the brightest possible value."""

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "bounds", check_bounds(self.bounds))
        if self.bounds != DATA:
            self._check_box()

    def _check_box(self) -> None:
        if self.needs_bounds and not is_finite(self.box):
            raise ValueError(
                f"bounds={self.box}: {type(self).__name__} needs the darkest and the brightest possible value: "
                "give bounds=(low, high), two finite numbers"
            )

    def apply(self, x: Any, seed: int = 0, rows: Tensor | None = None) -> Tensor:
        """Return the moved ``x [N, ...]``; each result depends only on the example, its index in ``rows`` and the seed.

        Without ``rows``, examples are numbered from 0.

        >>> from wafl import shifts
        >>> shifts.inversion(severity=1.0, bounds=(0.0, 1.0)).apply([[0.0, 0.25]])
        tensor([[1.0000, 0.7500]])
        """
        seed = check_seed(seed)
        x = torch.as_tensor(x)
        if not x.is_floating_point() or x.ndim < 2:
            raise ValueError(
                f"x holds {x.dtype} of shape {tuple(x.shape)}: give floating-point numbers, [N, C, H, W] or [N, D]"
            )
        if self.severity == 0:
            return x
        self._check_box()
        moved = self._shifted(x, seed, torch.arange(len(x), device=x.device) if rows is None else rows.to(x.device))
        return moved if self.box is None else moved.clamp(*self.box)

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """Return the moved examples."""
        return self.apply(population.x[0], seed, population.rows)[None]

    def describe(self, unit: str) -> str:
        """Describe the shift: its size with the unit, and bounds."""
        return f"{self._label(unit)}, {in_words(self.bounds)}"

    @abstractmethod
    def _label(self, unit: str) -> str:
        """Describe the shift without its bounds."""

    @abstractmethod
    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        """Return the moved ``x [N, ...]`` at a severity above 0, not yet clipped."""


def check_images(x: Tensor, name: str) -> None:
    """Raise ValueError if examples are not images."""
    if x.ndim < 3:
        raise ValueError(
            f"{name} moves images [N, C, H, W], not examples of shape {tuple(x.shape[1:])}: reshape them, "
            "or use a shift of values (affine, gaussian_noise, shot_noise, inversion)"
        )


def each_row(rows: Tensor, like: Tensor, seed: int, kind: Draw, make: Callable[[Tensor, Key], Tensor]) -> list[Tensor]:
    """Call ``make(indices, keys)`` on all ``rows``, some at a time; a row's key depends only on its index."""
    chunks = torch.arange(len(rows), device=like.device).split(max(1, _CHUNK // max(1, like.shape[1])))
    return [make(chunk, Key.of_examples(seed, rows[chunk], int(kind))) for chunk in chunks]


@frozen
class LabelShift(Attack):
    """A change in label probabilities from the data's ``p_c`` to ``q_c``, proportional to ``p_c d_c^severity``.

    d is drawn from the seed, uniformly from all label distributions (Dirichlet with all parameters 1). At 0 all
    examples have the same weight; at 1 the odds of two labels change by the odds in d; above 1, the most favored label
    dominates.

    >>> label_shift(severity=0.0).weights([0, 1, 1, 2], num_classes=3).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    needs_classes: ClassVar[bool] = True
    settings: ClassVar[Settings] = Settings("severity", 0.5)

    severity: Annotated[float, Severity(), "The size of the shift; 0 changes nothing."]

    def weights(self, y: Any, num_classes: int | None, seed: int = 0) -> Tensor:
        """Return each example's weight ``[N]`` under the shifted labels; the weights sum to 1."""
        labels = torch.as_tensor(y)
        if num_classes is None or labels.is_floating_point() or labels.ndim != 1 or len(labels) == 0:
            raise ValueError(
                f"y holds {labels.dtype} of shape {tuple(labels.shape)}: a label shift needs one whole number per "
                "example, its class, and at least one example"
            )
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < 0 or highest >= num_classes:
            raise ValueError(f"y holds labels {lowest} .. {highest}, which are not all in 0 .. {num_classes - 1}")
        draws = uniform(Key.of(check_seed(seed), step=Draw.LABELS), PURPOSE, num_classes)
        # A flat Dirichlet draw is exponential draws over their sum, which the softmax divides out.
        tilt = torch.log(-torch.log1p(-(draws + 2.0**-25))).to(labels.device)[labels.long()]
        return torch.softmax(self.severity * (tilt - tilt.max()), dim=0)

    def move(self, problem: Problem, population: Population, seed: int = 0) -> Tensor:
        """Return the unmoved examples, since :meth:`weights` is the shift."""
        return population.x

    def describe(self, unit: str) -> str:
        """Describe the shift."""
        return f"label shift, severity {self.severity:g}"


label_shift = maker(LabelShift)
