"""Shifts of where things are in an image: rotation, translation, blur. Beyond its edges an image repeats them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from wafl.base.bounds import DATA, Bounds
from wafl.shifts.shift import Shift, check_images


@dataclass(frozen=True)
class Rotation(Shift):
    """See :func:`rotation`."""

    highest: ClassVar[float] = 8.0

    def _label(self, unit: str) -> str:
        return f"rotation by {90.0 * self.severity:g} degrees"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        check_images(x, "rotation")
        angle = 0.5 * math.pi * math.fmod(self.severity, 4.0)
        down, right = _centered(x)
        return _sample(
            x,
            math.sin(angle) * right + math.cos(angle) * down,
            math.cos(angle) * right - math.sin(angle) * down,
        )


def rotation(*, severity: float, bounds: Bounds = DATA) -> Rotation:
    """Turn every image counterclockwise by ``90 * severity`` degrees about its center (bilinear).

    Args:
        severity: the angle in quarter turns, at most 8 (for one in degrees, divide by 90); 0 is the identity.
        bounds: where moved examples must stay: ``"data"`` (what the data declare), a box ``(low, high)``, or None.

    >>> quarter = rotation(severity=1.0).apply(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    >>> quarter.round().tolist()
    [[[[2.0, 4.0], [1.0, 3.0]]]]
    """
    return Rotation(severity, bounds)


@dataclass(frozen=True)
class Translation(Shift):
    """See :func:`translation`."""

    direction: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (len(self.direction) == 2 and all(map(math.isfinite, self.direction)) and any(self.direction)):
            raise ValueError(f"direction={self.direction} must be two finite numbers (down, right), not both 0")

    def _label(self, unit: str) -> str:
        down, right = (self.severity * part for part in self.direction)
        return f"translation by {down:g} pixels down and {right:g} right"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        check_images(x, "translation")
        down, right = _centered(x)
        return _sample(x, down - self.severity * self.direction[0], right - self.severity * self.direction[1])


def translation(*, severity: float, direction: tuple[float, float] = (0.0, 1.0), bounds: Bounds = DATA) -> Translation:
    """Move every image by ``severity * direction`` pixels, down and right (bilinear between whole pixels).

    Args:
        severity: how far, in multiples of ``direction``; 0 is the identity.
        direction: pixels down and pixels right.
        bounds: where moved examples must stay: ``"data"`` (what the data declare), a box ``(low, high)``, or None.

    >>> translation(severity=1.0).apply(torch.tensor([[[[1.0, 2.0, 3.0]]]])).round().tolist()
    [[[[1.0, 1.0, 2.0]]]]
    """
    return Translation(severity, bounds, direction)


@dataclass(frozen=True)
class Blur(Shift):
    """See :func:`blur`."""

    highest: ClassVar[float] = 100.0

    def _label(self, unit: str) -> str:
        return f"Gaussian blur, std {self.severity:g} pixels"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        check_images(x, "blur")
        vertical, horizontal = (self._matrix(size).to(x) for size in x.shape[-2:])
        return vertical @ x @ horizontal.mT

    def _matrix(self, size: int) -> Tensor:
        """One dimension's blur ``[size, size]``, with the weight that falls outside the image added to the edge."""
        radius = int(4.0 * self.severity + 0.5)
        offsets = torch.arange(-radius, radius + 1)
        weights = torch.exp(-0.5 * (offsets.double() / self.severity) ** 2)
        sources = (torch.arange(size)[:, None] + offsets).clamp(0, size - 1)
        matrix = torch.zeros(size, size, dtype=torch.float64)
        return matrix.scatter_add_(1, sources, (weights / weights.sum()).expand(size, -1))


def blur(*, severity: float, bounds: Bounds = DATA) -> Blur:
    """Average every pixel with its neighbors under a Gaussian of std ``severity`` pixels, cut off at four stds.

    Args:
        severity: the std in pixels, at most 100; 0 is the identity.
        bounds: where moved examples must stay: ``"data"`` (what the data declare), a box ``(low, high)``, or None.

    >>> blur(severity=1.0).apply(torch.ones(1, 1, 4, 4)).mean()
    tensor(1.)
    """
    return Blur(severity, bounds)


def _centered(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each pixel's offset from the center of the image, in pixels: ``[H, 1]`` down, ``[1, W]`` right."""
    height, width = x.shape[-2:]
    down = torch.arange(height, dtype=torch.float64, device=x.device) - 0.5 * (height - 1)
    right = torch.arange(width, dtype=torch.float64, device=x.device) - 0.5 * (width - 1)
    return down[:, None], right[None]


def _sample(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Each pixel's new value, read from ``x`` at this offset from its center."""
    height, width = x.shape[-2:]
    places = torch.broadcast_tensors(right / (0.5 * width), down / (0.5 * height))
    # Every image is read at the same places, so all of them can be channels of one.
    images = x.reshape(1, -1, height, width)
    grid = torch.stack(places, dim=-1)[None].to(x.dtype)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False).view_as(x)
