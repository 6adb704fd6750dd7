"""Draw Gaussian noise from the operating system, on a grid, so that no bit of a sum reveals values below the noise.

Floating-point sums and noise leak through their last bits (Mironov, "On significance of the least significant bits for
differential privacy", CCS 2012; Casacuberta et al., "Widespread underestimation of sensitivity in differentially
private libraries", CCS 2022). Here vectors are multiples of a grid, so their sums are exact, and noise that is rounded
to the grid is the rounding of a Gaussian mechanism: it is as private as that mechanism.
"""

import math
import os

import numpy as np
import torch
from torch import Tensor

GRID = 2.0**-20
"""The spacing of the grid, as a fraction of the noise's standard deviation."""


def gaussian(count: int) -> Tensor:
    """Draw independent standard normal numbers from the operating system's generator, by Box and Muller.

    A pair's length comes from 106 random bits. With 53, there would be no length above 8.6, and from 7.1 on the lengths
    would be further apart than the grid: such a pair would show which sum it was added to.
    """
    words = np.frombuffer(os.urandom(24 * math.ceil(count / 2)), np.uint64).reshape(3, -1)
    high, low, angle = (words >> np.uint64(11)) * 2.0**-53
    length = np.sqrt(-2.0 * np.log(high + (low + 2.0**-53) * 2.0**-53))
    draws = np.concatenate([length * np.cos(2.0 * np.pi * angle), length * np.sin(2.0 * np.pi * angle)])
    return torch.from_numpy(draws[:count])


def clipped_sum(vectors: Tensor, clip_norm: float, deviation: float) -> Tensor:
    """Sum up rows, each shortened to at most ``clip_norm``, in whole steps of the grid, rounded towards zero.

    A row that is not finite counts as zero, because an error or an infinite sum would reveal it.
    """
    rows = vectors.double()  # in which no square of a float32 overflows
    lengths = rows.norm(dim=1)
    if not bool((finite := torch.isfinite(lengths)).all()):
        rows, lengths = rows[finite], lengths[finite]
    factors = (clip_norm / lengths).clamp_max(1.0) / (GRID * deviation)
    return (rows * factors[:, None]).trunc_().sum(0)


def noisy(total: Tensor, deviation: float) -> Tensor:
    """Return a sum of clipped rows with noise of this standard deviation in every coordinate."""
    return (total + (gaussian(len(total)) / GRID).round()) * (GRID * deviation)
