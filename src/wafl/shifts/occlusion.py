"""A square that covers a part of each image, as dirt on a lens or a sticker does."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import frozen, maker
from wafl.base.random import Key, uniform
from wafl.shifts.shift import PURPOSE, Draw, Severity, Shift, check_images, each_row


@frozen
class Occlusion(Shift):
    """A square of every image, at a place drawn for it, has the darkest value of the image.

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

        def covered(places: Tensor, key: Key) -> Tensor:
            images = x[places]
            room = torch.tensor([height - side + 1, width - side + 1], device=x.device)
            top, left = (uniform(key, PURPOSE, 2) * room).long().mT
            lines = (down >= top[:, None]) & (down < top[:, None] + side)
            columns = (right >= left[:, None]) & (right < left[:, None] + side)
            square = (lines[:, :, None] & columns[:, None, :]).view(-1, *(1,) * (x.ndim - 3), height, width)
            darkest = images.flatten(1).amin(1).view(-1, *(1,) * (x.ndim - 1))
            return torch.where(square, darkest, images)

        return torch.cat(each_row(rows, x.flatten(1), seed, Draw.OCCLUSION, covered))


occlusion = maker(Occlusion)
