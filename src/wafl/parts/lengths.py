"""Lengths and inner products of updates, and shortening those that are far longer than most.

``servers/averaging.py`` names the paper (Clipped). Wide matrices are read a few columns at a time to keep copies small.
"""

import math
from collections.abc import Callable, Sequence
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
        deltas = part.double() - begin.double()
        return deltas @ deltas.T

    return reduce(torch.add, by_columns(products, rows, start))


def lengths_of(start: Tensor, models: Tensor) -> Tensor:
    """The l2 length of each update, ``models [n, P]`` minus ``start``, in double precision, which does not overflow."""
    squares = by_columns(lambda part, begin: (part.double() - begin.double()).square().sum(1), models, start)
    return torch.stack(squares).sum(0).sqrt()


def by_node(values: Tensor, nodes: Sequence[int]) -> Tensor:
    """One value per node, the lower median of its clients'; without ``nodes`` every client is by itself."""
    if len(set(nodes)) == len(nodes):
        return values
    numbers = torch.tensor(nodes)
    return torch.stack([values[numbers == node].median() for node in dict.fromkeys(nodes)])  # torch's is the lower one


def longest_of(lengths: Tensor, multiple: float, nodes: Sequence[int] = ()) -> float:
    """``multiple`` times the median length, above which an update is too long; infinity if nobody can be compared.

    Every node has one vote, whatever its clients claim to weigh. Of an even number of lengths the median is the lower
    middle one, so of two updates the longer is compared with the shorter. Nodes that did not move have no vote.
    """
    votes = by_node(lengths, nodes)
    positive = votes[votes > 0]
    return multiple * float(positive.median()) if len(positive) > 1 else math.inf


def shortened(start: Tensor, models: Tensor, lengths: Tensor, longest: Tensor) -> Tensor:
    """The models with updates of at most these lengths; if none is longer, the same bits."""
    long = lengths > longest
    if not bool(long.any()):
        return models
    share = (longest[long] / lengths[long]).to(models)[:, None]
    models = models.clone()
    models[long] = start + share * (models[long] - start)
    return models
