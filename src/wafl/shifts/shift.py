"""What all shifts share: a severity, a box to stay in, and draws that belong to one example each."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import torch
from torch import Tensor

from wafl.attacks import Attack
from wafl.checks import check_bounds, check_seed
from wafl.random import Key, Purpose
from wafl.task import Problem

PURPOSE = Purpose.SHIFT
_CHUNK = 2**20


class Draw(IntEnum):
    """The step of a key: shifts of different kinds draw independently, and from 1, as 0 chooses the clients."""

    AFFINE = 1
    GAUSSIAN = 2
    SHOT = 3
    LABELS = 4


@dataclass(frozen=True)
class Shift(Attack):
    """``severity`` 0 is exactly the identity; what is moved is clipped into ``bounds``, where they are given."""

    severity: float
    bounds: tuple[float, float] | None = None

    highest: ClassVar[float] = math.inf
    needs_bounds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_severity(self.severity, self.highest)
        object.__setattr__(self, "bounds", check_bounds(self.bounds))
        if self.needs_bounds and (self.bounds is None or not all(map(math.isfinite, self.bounds))):
            raise ValueError(
                f"bounds={self.bounds}: {type(self).__name__} needs the darkest and the brightest value there is: "
                "give bounds=(low, high), two finite numbers"
            )

    def apply(self, x: Any, seed: int = 0) -> Tensor:
        """The moved ``x [N, ...]``: example i depends on ``x[i]``, i and the seed, not on its neighbors.

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
        moved = self._shifted(x, seed)
        return moved if self.bounds is None else moved.clamp(*self.bounds)

    def move(self, problem: Problem, x: Tensor, y: Tensor, seed: int = 0, weight: Tensor | None = None) -> Tensor:
        return self.apply(x[0], seed)[None]

    @abstractmethod
    def _shifted(self, x: Tensor, seed: int) -> Tensor:
        """The moved ``x [N, ...]`` at a severity above 0, not yet clipped."""


def check_severity(severity: float, highest: float = math.inf) -> None:
    if not (0 <= severity <= highest and math.isfinite(severity)):
        wanted = "must be finite and at least 0" if highest == math.inf else f"must lie in [0, {highest:g}]"
        raise ValueError(f"severity={severity} {wanted}: 0 leaves the data as they are, more moves them further")


def check_images(x: Tensor, name: str) -> None:
    if x.ndim < 3:
        raise ValueError(
            f"{name} moves images [N, C, H, W], not examples of shape {tuple(x.shape[1:])}: reshape them, "
            "or take a shift of values (affine, gaussian_noise, shot_noise, inversion)"
        )


def each_row(total: int, like: Tensor, seed: int, kind: Draw, make: Callable[[Tensor, Key], Tensor]) -> list[Tensor]:
    """``make(rows, keys)`` for all ``total`` rows, some at a time; a row is as wide as those of ``like``.

    Each row's key is its own, so that what is drawn for it depends on no other.
    """
    rows = torch.arange(total, device=like.device)

    def key(part: Tensor) -> Key:
        return Key(torch.full_like(part, seed), torch.zeros_like(part), part, torch.full_like(part, int(kind)))

    return [make(part, key(part)) for part in rows.split(max(1, _CHUNK // max(1, like.shape[1])))]
