"""Shift and mirror a batch at random, with draws from keys: runs repeat, and padding changes no draw."""

import torch
from torch import Tensor

from wafl.base.random import Key, Purpose, uniform


def augmented(x: Tensor, key: Key, shift: int, flip: float) -> Tensor:
    """Mirror images ``[G, B, C, H, W]`` with probability ``flip``, then shift them by up to ``shift`` with zeros."""
    if x.ndim != 5:
        raise ValueError(
            f"shift={shift} and flip={flip} are for images (channels, height, width), not for examples of shape "
            f"{tuple(x.shape[2:])}: leave them out"
        )
    draws = uniform(key, Purpose.AUGMENTATION, 3 * x.shape[1]).view(*x.shape[:2], 3).to(x.device)
    down, right = ((draws[..., axis] * (2 * shift + 1)).long() - shift for axis in (0, 1))
    height, width = (torch.arange(size, device=x.device) for size in x.shape[3:])
    columns = width - right[..., None]
    across = torch.where(draws[..., 2:] < flip, x.shape[4] - 1 - columns, columns)
    return _taken(_taken(x, height - down[..., None], 3), across, 4)


def _taken(x: Tensor, positions: Tensor, dim: int) -> Tensor:
    """Return the rows or columns at these positions ``[G, B, size]``, with zeros outside the image."""
    size, shape = x.shape[dim], (*x.shape[:2], 1, *(-1 if each == dim else 1 for each in (3, 4)))
    inside = ((positions >= 0) & (positions < size)).view(shape)
    return x.gather(dim, positions.clamp(0, size - 1).view(shape).expand_as(x)) * inside
