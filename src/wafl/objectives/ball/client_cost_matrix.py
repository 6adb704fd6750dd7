"""Compute the cost matrix of the differences between clients from their class means; no example leaves its client."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.checks import check_memory
from wafl.base.options import frozen
from wafl.objectives.ball.cost_matrix import CLIENTS, CostMatrix


@frozen
class ClassMeans:
    """The mean of each class at each of several clients, ordered by class and then by client."""

    labels: Annotated[Tensor, "The class of each mean ``[G]``; targets of a regression count as one class, 0."]
    clients: Annotated[Tensor, "Whose it is ``[G]``."]
    means: Annotated[Tensor, "The means ``[G, D]``, in double precision."]
    counts: Annotated[Tensor, "Of how many examples each is ``[G]``."]

    def sizes(self, num_clients: int) -> list[int]:
        """Return the number of examples of each client."""
        return torch.zeros(num_clients, dtype=torch.int64).index_add_(0, self.clients, self.counts).tolist()


def class_means(x: Tensor, y: Tensor, owner: Tensor) -> ClassMeans:
    """Return the class means of examples ``x [N, ...]`` with labels ``y [N]`` and clients ``owner [N]``."""
    labels = torch.zeros_like(owner) if y.is_floating_point() else y
    groups, group = torch.stack([labels, owner], dim=1).unique(dim=0, return_inverse=True)
    counts = torch.bincount(group, minlength=len(groups))
    return ClassMeans(
        groups[:, 0], groups[:, 1], _sums(x.flatten(1).double(), group, len(groups)) / counts[:, None], counts
    )


def joined(parts: Sequence[ClassMeans]) -> ClassMeans:
    """Return the class means of several groups of clients, in the order of :class:`ClassMeans`."""
    labels, clients = (torch.cat([getattr(part, name) for part in parts]) for name in ("labels", "clients"))
    order = torch.stack([labels, clients], dim=1).unique(dim=0, return_inverse=True)[1].argsort()
    means, counts = (torch.cat([getattr(part, name) for part in parts]) for name in ("means", "counts"))
    return ClassMeans(labels[order], clients[order], means[order], counts[order])


def cost_matrix_of_means(classes: ClassMeans, shrinkage: float = 0.1) -> CostMatrix:
    """Return the root of the covariance of the class means between clients, shrunk toward a round ball.

    ``B = sum_c sum_i n_ic (m_ic - m_c)(m_ic - m_c)^T / sum n_ic``, with ``m_ic`` the mean of the class c at client i,
    ``n_ic`` the number of its examples, and ``m_c`` the mean over all clients. Then ``A^2 = (1 - shrinkage) B / b +
    shrinkage I`` with ``b = trace(B) / D``, so that the average cost of a move is the same as in a round ball.
    """
    means, counts = classes.means, classes.counts.double()
    labels, of_class = classes.labels.unique(return_inverse=True)
    totals = torch.zeros(len(labels), dtype=torch.float64).index_add_(0, of_class, counts)
    centers = _sums(counts[:, None] * means, of_class, len(labels)) / totals[:, None]
    shares = (counts / counts.sum())[:, None]
    apart = (means - centers[of_class]) * shares.sqrt()
    between = apart.T @ apart
    size = between.trace() / len(between)
    if not float(size) > 1e-12 * float((shares * means.square()).sum() / len(between)):
        raise ValueError(f"cost_matrix={CLIENTS!r}: the classes have the same means at all clients, so none follows")
    round_part = torch.eye(len(between), dtype=torch.float64)
    values, vectors = torch.linalg.eigh((1.0 - shrinkage) * between / size + shrinkage * round_part)
    return CostMatrix((vectors * values.clamp_min(0.0).sqrt()) @ vectors.T)


def client_cost_matrix(x: Tensor, y: Tensor, owner: Tensor, shrinkage: float = 0.1) -> CostMatrix:
    """Return the cost matrix of the differences between clients, from their examples ``x [N, ...]``.

    See :func:`cost_matrix_of_means`.

    ``y [N]`` are the labels; regression targets count as one class. ``owner [N]`` contains the client of each example,
    and ``shrinkage`` is the weight of the round ball.
    """
    return cost_matrix_of_means(class_means(x, y, owner), shrinkage)


def check_size(input_shape: tuple[int, ...]) -> None:
    """Raise an error if a cost matrix for this many features does not fit into memory."""
    features = math.prod(input_shape)
    remedy = "give one number per feature, or use a round ball"
    check_memory(f"cost_matrix={CLIENTS!r} of {features} features", 24.0 * features**2, remedy)


def _sums(values: Tensor, group: Tensor, groups: int) -> Tensor:
    return values.new_zeros(groups, values.shape[1]).index_add_(0, group, values)
