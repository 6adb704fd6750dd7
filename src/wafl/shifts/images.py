"""Shift images by rotation, translation, blur and occlusion; edges are repeated outside an image."""

import math
from functools import lru_cache
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from wafl.base.options import frozen, maker
from wafl.base.random import Key, uniform
from wafl.shifts.shift import PURPOSE, Draw, Severity, Shift, check_images, each_row


@frozen
class Rotation(Shift):
    """A counterclockwise rotation of every image by ``90 * severity`` degrees about its center (bilinear).

    >>> quarter = rotation(severity=1.0).apply(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]))
    >>> quarter.round().tolist()
    [[[[2.0, 4.0], [1.0, 3.0]]]]
    """

    severity: Annotated[float, Severity(8), "The angle in quarter turns; 0 is the identity."]

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


@frozen
class Translation(Shift):
    """A move of every image by ``severity * direction`` pixels (bilinear between whole pixels).

    >>> translation(severity=1.0).apply(torch.tensor([[[[1.0, 2.0, 3.0]]]])).round().tolist()
    [[[[1.0, 1.0, 2.0]]]]
    """

    severity: Annotated[float, Severity(), "The distance in multiples of the direction; 0 is the identity."]
    direction: Annotated[tuple[float, float], "Pixels down and pixels right."] = (0.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (len(self.direction) == 2 and all(map(math.isfinite, self.direction)) and any(self.direction)):
            raise ValueError(f"direction={self.direction} must be two finite numbers (down, right), not both 0")

    def _label(self, unit: str) -> str:
        down, right = (self.severity * pixels for pixels in self.direction)
        return f"translation by {down:g} pixels down and {right:g} right"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        check_images(x, "translation")
        down, right = _centered(x)
        return _sample(x, down - self.severity * self.direction[0], right - self.severity * self.direction[1])


@frozen
class Blur(Shift):
    """A Gaussian average of every pixel with its neighbors, cut off at four standard deviations.

    >>> blur(severity=1.0).apply(torch.ones(1, 1, 4, 4)).mean()
    tensor(1.)
    """

    severity: Annotated[float, Severity(100), "The standard deviation in pixels; 0 is the identity."]

    def _label(self, unit: str) -> str:
        return f"Gaussian blur, std {self.severity:g} pixels"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        check_images(x, "blur")
        vertical, horizontal = (_blurring(self.severity, size, x.dtype, x.device) for size in x.shape[-2:])
        return vertical @ x @ horizontal.mT


@lru_cache(maxsize=8)  # training requests it in every step
def _blurring(severity: float, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one dimension's blur ``[size, size]``, with weight outside the image added to the edge."""
    radius = int(4.0 * severity + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / severity) ** 2)
    sources = (torch.arange(size)[:, None] + offsets).clamp(0, size - 1)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    return matrix.scatter_add_(1, sources, (weights / weights.sum()).expand(size, -1)).to(device, dtype)


@frozen
class Occlusion(Shift):
    """A square of the image's darkest value at a random position in every image, as from dirt on a lens.

    >>> image = torch.tensor([[[[0.0, 1.0], [1.0, 1.0]]]])
    >>> occlusion(severity=1.0).apply(image).sum()
    tensor(0.)
    """

    severity: Annotated[float, Severity(1), "The side of the square, as a share of the image's shorter side."]

    def _label(self, unit: str) -> str:
        return f"a dark square, {self.severity:g} of an image's shorter side"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        check_images(x, "occlusion")
        height, width = x.shape[-2:]
        side = round(self.severity * min(height, width))
        down, right = (torch.arange(size, device=x.device) for size in (height, width))

        def covered(chosen: Tensor, key: Key) -> Tensor:
            images = x[chosen]
            draws = uniform(key, PURPOSE, 2)
            top, left = (((size - side + 1) * draws[:, axis]).long() for axis, size in enumerate((height, width)))
            inside_rows = (down >= top[:, None]) & (down < top[:, None] + side)
            inside_columns = (right >= left[:, None]) & (right < left[:, None] + side)
            square = (inside_rows[:, :, None] & inside_columns[:, None, :]).view(
                -1, *(1,) * (x.ndim - 3), height, width
            )
            darkest = images.flatten(1).amin(1).view(-1, *(1,) * (x.ndim - 1))
            return torch.where(square, darkest, images)

        return torch.cat(each_row(rows, x.flatten(1), seed, Draw.OCCLUSION, covered))


def _centered(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return each pixel's offset from the center of the image, in pixels: ``[H, 1]`` down, ``[1, W]`` right."""
    height, width = x.shape[-2:]
    down = torch.arange(height, dtype=torch.float64, device=x.device) - 0.5 * (height - 1)
    right = torch.arange(width, dtype=torch.float64, device=x.device) - 0.5 * (width - 1)
    return down[:, None], right[None]


def _sample(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Return the images ``x``, each pixel read at this offset from the center."""
    height, width = x.shape[-2:]
    points = torch.broadcast_tensors(right / (0.5 * width), down / (0.5 * height))
    # Every image is read at the same points, so all of them can be channels of one.
    images = x.reshape(1, -1, height, width)
    grid = torch.stack(points, dim=-1)[None].to(x.dtype)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False).view_as(x)


rotation = maker(Rotation)
translation = maker(Translation)
blur = maker(Blur)
occlusion = maker(Occlusion)
