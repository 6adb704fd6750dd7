"""Change images little by little: the differences between clients of a task, each with an amount."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from scipy import ndimage

from research.clients_ball.objectives import Array


def moved(images: Array, matrix: Array, offset: tuple[float, float] = (0.0, 0.0)) -> Array:
    """Return images ``[N, H, W]`` whose pixel at p is the old pixel at ``matrix p + offset``, from the center."""
    center = (np.array(images.shape[1:]) - 1.0) / 2.0
    start = center - matrix @ center + np.array(offset)
    whole = np.eye(3)
    whole[1:, 1:] = matrix
    return cast(Any, ndimage.affine_transform)(images, whole, np.array([0.0, *start]), order=1)


def rotated(images: Array, degrees: float) -> Array:
    """Turn images counterclockwise."""
    angle = np.deg2rad(degrees)
    return moved(images, np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]))


def slanted(images: Array, slope: float) -> Array:
    """Move each row sideways by this many pixels per row."""
    return moved(images, np.array([[1.0, 0.0], [slope, 1.0]]))


def squeezed(images: Array, share: float) -> Array:
    """Make images narrower by this share of their width."""
    return moved(images, np.diag([1.0, 1.0 / (1.0 - share)]))


def shifted(images: Array, share: float) -> Array:
    """Move images to the right by this share of their width."""
    return moved(images, np.eye(2), (0.0, -share * images.shape[2]))


def thickened(images: Array, pixels: float) -> Array:
    """Replace pixels by the largest value around them, up to this distance."""
    whole, rest = int(pixels), pixels - int(pixels)
    near, far = (ndimage.maximum_filter(images, (1, 2 * size + 1, 2 * size + 1)) for size in (whole, whole + 1))
    return (1.0 - rest) * near + rest * far


def dimmed(images: Array, share: float) -> Array:
    """Multiply images, so that they lose this share of their brightness."""
    return (1.0 - share) * images


def hazed(images: Array, share: float) -> Array:
    """Mix images with white."""
    return (1.0 - share) * images + share


def blurred(images: Array, pixels: float) -> Array:
    """Blur images by a Gaussian with this deviation."""
    return ndimage.gaussian_filter(images, (0.0, pixels, pixels))


CHANGES: dict[str, Callable[[Array, float], Array]] = {
    each.__name__: each for each in (rotated, slanted, squeezed, shifted, thickened, dimmed, hazed, blurred)
}


def slant(images: Array) -> Array:
    """Return how far each image's ink moves sideways per row, from its moments."""
    rows, columns = (each.astype(np.float64) for each in np.indices(images.shape[1:]))
    mass = images.sum((1, 2)) + 1e-9
    away = [axis - ((images * axis).sum((1, 2)) / mass)[:, None, None] for axis in (rows, columns)]
    return -(images * away[0] * away[1]).sum((1, 2)) / ((images * away[0] ** 2).sum((1, 2)) + 1e-9)


def reduced(images: Array, side: int) -> Array:
    """Return images ``[N, H, W]`` or ``[N, H, W, 3]`` with this height and width: means of areas of equal size."""

    def weights(size: int) -> Array:
        edges = np.linspace(0.0, size, side + 1)
        low, high = np.arange(size)[None], np.arange(1, size + 1)[None]
        shares = np.minimum(high, edges[1:, None]) - np.maximum(low, edges[:-1, None])
        return np.maximum(shares, 0.0) / (size / side)

    return np.einsum("ah,bw,nhw...->nab...", weights(images.shape[1]), weights(images.shape[2]), images)
