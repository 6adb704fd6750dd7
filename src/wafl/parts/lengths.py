"""Compute lengths and inner products of updates, and shorten updates that are far longer than most.

``servers/averaging.py`` cites the paper (Clipped). Wide matrices are read a few columns at a time to keep copies small.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

NUMBERS = 2**22
"""The number of matrix entries in one part."""


def by_columns(work: Callable[..., Tensor], rows: Tensor, *vectors: Tensor) -> list[Tensor]:
    """Return the results of ``work`` for each group of columns of ``rows [n, P]`` and of each vector."""
    width = max(1, NUMBERS // len(rows))
    return [
        work(part, *parts)
        for part, *parts in zip(rows.split(width, 1), *(vector.split(width) for vector in vectors), strict=True)
    ]


def gram(rows: Tensor, start: Tensor) -> Tensor:
    """Return the inner products ``[n, n]`` of the rows, relative to ``start``, in double precision."""

    def products(part: Tensor, begin: Tensor) -> Tensor:
        deltas = part.double() - begin.double()
        return deltas @ deltas.T

    return reduce(torch.add, by_columns(products, rows, start))


def lengths_of(start: Tensor, models: Tensor) -> Tensor:
    """Return the l2 length of each update, ``models [n, P]`` minus ``start``, in double precision without overflow."""
    squares = by_columns(lambda part, begin: (part.double() - begin.double()).square().sum(1), models, start)
    return torch.stack(squares).sum(0).sqrt()


def by_node(values: Tensor, nodes: Sequence[int]) -> Tensor:
    """Return one value per node, the lower median of its clients' values; without ``nodes``, each client is a node."""
    if len(set(nodes)) == len(nodes):
        return values
    numbers = torch.tensor(nodes)
    return torch.stack([values[numbers == node].median() for node in dict.fromkeys(nodes)])  # torch's is the lower one


def longest_of(lengths: Tensor, multiple: float, nodes: Sequence[int] = ()) -> float:
    """Return ``multiple`` times the median length, the limit of an update's length; infinity for fewer than two.

    Every node has one vote, whatever weight its clients claim. Of an even number of lengths the median is the lower
    middle one, so with two updates it is the shorter one. Nodes with an update of length 0 have no vote.
    """
    votes = by_node(lengths, nodes)
    positive = votes[votes > 0]
    return multiple * float(positive.median()) if len(positive) > 1 else math.inf


def shortened(start: Tensor, models: Tensor, lengths: Tensor, longest: Tensor) -> Tensor:
    """Return the models with updates of at most these lengths; if none is longer, the same bits."""
    long = lengths > longest
    if not bool(long.any()):
        return models
    share = (longest[long] / lengths[long]).to(models)[:, None]
    models = models.clone()
    models[long] = start + share * (models[long] - start)
    return models
