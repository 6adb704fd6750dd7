"""Weights on the surface of a ball around the center: how far they lean to the losses is one number."""

from collections.abc import Callable

from torch import Tensor


def leaning(
    lean: Callable[[float], Tensor], divergence: Callable[[float], float], radius: float, most: float
) -> Tensor:
    """``lean(t)`` for the largest t in [0, most] whose divergence from the center is at most the radius.

    The weights start from the center at 0, and their divergence only grows with t. Beyond ``most``, all the weight is
    on the largest losses.
    """
    if divergence(most) <= radius:
        return lean(most)
    low, high = 0.0, most
    for _ in range(200):  # enough for an interval to shrink to two neighboring numbers in double precision
        middle = (low + high) / 2.0
        low, high = (middle, high) if divergence(middle) <= radius else (low, middle)
    return lean(low)
