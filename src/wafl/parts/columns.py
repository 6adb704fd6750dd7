"""Work on a wide matrix a few columns at a time, so that temporary copies stay small."""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

NUMBERS = 2**22
"""Numbers of the matrix in one part."""


def by_columns(work: Callable[..., Tensor], rows: Tensor, *vectors: Tensor) -> list[Tensor]:
    """What ``work`` makes of each part of the columns of ``rows [n, P]``, and of the same part of each vector."""
    width = max(1, NUMBERS // len(rows))
    return [
        work(part, *parts)
        for part, *parts in zip(rows.split(width, 1), *(vector.split(width) for vector in vectors), strict=True)
    ]


def gram(rows: Tensor, start: Tensor) -> Tensor:
    """The inner products ``[n, n]`` of the rows, measured from ``start``, in double precision."""

    def products(part: Tensor, begin: Tensor) -> Tensor:
        moved = part.double() - begin.double()
        return moved @ moved.T

    return reduce(torch.add, by_columns(products, rows, start))
