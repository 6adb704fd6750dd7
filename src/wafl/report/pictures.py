"""Strips of example images, as PNGs that a page holds inside itself."""

import base64
import io

import numpy as np
from numpy.typing import NDArray

MOST_SIDE = 64
"""Larger images are thinned out to about this many pixels on a side."""
GAP = 0.06
"""Between two images, as a part of their width."""

Array = NDArray[np.floating]


def image_shape(shape: tuple[int, ...]) -> bool:
    """Whether examples of this shape can be shown: gray ``[H, W]`` or ``[1, H, W]``, or color ``[3, H, W]``."""
    sides = shape[-2:]
    return len(shape) in (2, 3) and (len(shape) == 2 or shape[0] in (1, 3)) and min(sides) >= 4


def strip(images: Array, low: float, high: float) -> str:
    """A PNG of images ``[N, ...]`` side by side, as a data URI; ``low`` is black and ``high`` white."""
    pixels = np.clip((_color(images) - low) / max(high - low, 1e-12), 0.0, 1.0)
    return _png(_side_by_side(pixels, np.ones((*pixels.shape[:-1], 1))))


def difference(shifted: Array, original: Array) -> str:
    """A PNG of differences side by side: added is blue, taken away is orange, and no change is clear."""
    delta = _color(shifted - original).mean(-1)
    opacity = np.clip(np.abs(delta) / max(float(np.abs(delta).max()), 1e-12), 0.0, 1.0)[..., None]
    blue, orange = np.array([0.0, 0.45, 0.70]), np.array([0.84, 0.37, 0.0])
    tint = np.where(delta[..., None] >= 0, blue, orange)
    return _png(_side_by_side(np.broadcast_to(tint, (*delta.shape, 3)), opacity))


def _color(images: Array) -> Array:
    """Images as ``[N, H, W, 3]``, thinned out if they are large."""
    if images.ndim == 3:
        images = images[:, None]
    step = max(1, max(images.shape[-2:]) // MOST_SIDE)
    images = images[:, :, ::step, ::step]
    return np.moveaxis(np.broadcast_to(images, (len(images), 3, *images.shape[2:])), 1, -1)


def _side_by_side(pixels: Array, alpha: Array) -> Array:
    """One image ``[H, N (W + gap), 4]`` with clear gaps."""
    both = np.concatenate([pixels, alpha], axis=-1)
    gap = max(1, round(GAP * both.shape[2]))
    padded = np.pad(both, ((0, 0), (0, 0), (0, gap), (0, 0)))
    return np.concatenate(list(padded), axis=1)[:, :-gap]


def _png(pixels: Array) -> str:
    from matplotlib.image import imsave

    file = io.BytesIO()
    imsave(file, np.round(255 * pixels).astype(np.uint8), format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
