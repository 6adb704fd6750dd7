"""Compute the cost matrix of the differences between clients from their class means; no example leaves its client.

Each client sends two means of each class, each of half of its examples. The errors of the two are independent, so
their products estimate the differences between clients without bias: noise from few examples, and any noise that is
drawn for each half alone, cancels. The unit is the distance of a client that the estimate has not seen.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.checks import check_memory
from wafl.base.options import frozen
from wafl.objectives.ball.cost_matrix import CLIENTS, CostMatrix

MOST_FOLDS = 10
"""With more clients, several are left out at a time."""
LEAST_ROUND = 0.1
"""The minimum weight of the round ball."""
UNIT = "1 is the distance of a left-out client's class means from the others'"


@frozen
class ClassMeans:
    """Two means of each class at each of several clients, ordered by class and then by client."""

    labels: Annotated[Tensor, "The class of each pair ``[G]``; targets of a regression count as one class, 0."]
    clients: Annotated[Tensor, "Whose it is ``[G]``."]
    means: Annotated[Tensor, "The means of both halves ``[G, 2, D]``, in double precision."]
    counts: Annotated[Tensor, "Of how many examples each pair is ``[G]``; the first half may have one more."]

    def sizes(self, num_clients: int) -> list[int]:
        """Return the number of examples of each client."""
        return torch.zeros(num_clients, dtype=torch.int64).index_add_(0, self.clients, self.counts).tolist()

    def at(self, rows: Tensor) -> "ClassMeans":
        """Return some of the pairs."""
        return ClassMeans(self.labels[rows], self.clients[rows], self.means[rows], self.counts[rows])


def class_means(x: Tensor, y: Tensor, owner: Tensor, least: int = 2) -> ClassMeans:
    """Return the class means of examples ``x [N, ...]`` with labels ``y [N]`` and clients ``owner [N]``.

    A class with fewer than ``least`` examples at a client is left out. The halves are the first and the last examples.
    """
    labels = torch.zeros_like(owner) if y.is_floating_point() else y
    groups, group = torch.stack([labels, owner], dim=1).unique(dim=0, return_inverse=True)
    counts = torch.bincount(group, minlength=len(groups))
    order = group.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[group[order]]
    half = 2 * group + (2 * place >= counts[group]).long()
    sums = _sums(x.flatten(1).double(), half, 2 * len(groups)).unflatten(0, (-1, 2))
    sizes = torch.stack([counts - counts // 2, counts // 2], dim=1).clamp_min(1)
    every = ClassMeans(groups[:, 0], groups[:, 1], sums / sizes[..., None], counts)
    return every.at(counts >= max(2, least))


def joined(parts: Sequence[ClassMeans]) -> ClassMeans:
    """Return the class means of several groups of clients, in the order of :class:`ClassMeans`."""
    labels, clients = (torch.cat([getattr(part, name) for part in parts]) for name in ("labels", "clients"))
    order = torch.stack([labels, clients], dim=1).unique(dim=0, return_inverse=True)[1].argsort()
    means, counts = (torch.cat([getattr(part, name) for part in parts]) for name in ("means", "counts"))
    return ClassMeans(labels, clients, means, counts).at(order)


def cost_matrix_of_means(classes: ClassMeans, at: str = "") -> CostMatrix:
    """Return the root of the covariance of the class means between clients, in the unit of a left-out client.

    ``at`` describes the layer whose outputs have these means, for the unit; empty for examples.

    The covariance is ``S = sum n_ic (a_ic - a_c)(b_ic - b_c)^T / V``, symmetrized, over the classes c and the clients
    i. ``a_ic`` and ``b_ic`` are the means of the two halves, ``n_ic`` is the number of examples, ``a_c`` and ``b_c``
    are means over clients, and ``V = sum_c (n_c - sum_i n_ic^2 / n_c)`` makes S unbiased. B is the positive
    semidefinite matrix with S's trace that is nearest to S, and ``M = (1 - w) B / b + w I`` with ``b = trace(B) / D``,
    where w is Ledoit and Wolf's (2004), with clients as draws.

    Then ``A^2 = s M``. Here s is the mean of ``(a_ic - a_c)^T M^-1 (b_ic - b_c)`` over left-out clients, with M, a_c
    and b_c of the other clients. So 1 is the root mean square distance of a client that A has not seen.
    """
    rows, basis = _in_span(classes)
    features = classes.means.shape[2]
    rounding = 1e-12 * float(classes.means.square().sum()) / max(1, len(classes.labels))
    covariance, away, weights = _covariance(rows)
    weight = _round_weight(covariance, away, weights, rows.clients, features)
    shape = _shape(covariance, features, weight)
    numbers = rows.clients.unique(return_inverse=True)[1]
    folds = numbers % MOST_FOLDS
    total, count, known = 0.0, 0.0, False
    for fold in folds.unique():
        others = rows.at(folds != fold)
        left_out, sizes = _away_from(rows.at(folds == fold), others)
        their_shape = _shape(_covariance(others)[0], features, weight)
        known |= their_shape is not None
        first, second = left_out.unbind(1)
        moved = first if their_shape is None else torch.linalg.solve(their_shape, first.T).T
        total += float((sizes * (moved * second).sum(1)).sum())
        count += float(sizes.sum())
    if shape is None or not known or not total > 0 or not covariance.trace() > rounding:
        raise ValueError(
            f"cost_matrix={CLIENTS!r}: the classes have the same means at all clients{at}, as far as their examples "
            "show, or no three clients have the same class, so none follows: use a round ball, or more clients or "
            f"examples{', or train the model first and start from it, with init=run.params' if at else ''}"
        )
    values, vectors = torch.linalg.eigh(shape)
    root = (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
    if basis is not None:  # in all other directions, clients are not known to differ
        apart = root - math.sqrt(weight) * torch.eye(len(root), dtype=torch.float64)
        root = math.sqrt(weight) * torch.eye(features, dtype=torch.float64) + basis @ apart @ basis.T
    return CostMatrix(math.sqrt(total / count) * root, UNIT + at)


def client_cost_matrix(x: Tensor, y: Tensor, owner: Tensor) -> CostMatrix:
    """Return the cost matrix of the differences between clients, from their examples ``x [N, ...]``.

    See :func:`cost_matrix_of_means`. ``y [N]`` are the labels; regression targets count as one class. ``owner [N]``
    contains the client of each example.
    """
    return cost_matrix_of_means(class_means(x, y, owner))


def check_size(input_shape: tuple[int, ...]) -> None:
    """Raise an error if a cost matrix for this many features does not fit into memory."""
    features = math.prod(input_shape)
    remedy = "give one number per feature, or use a round ball"
    check_memory(f"cost_matrix={CLIENTS!r} of {features} features", 24.0 * features**2, remedy)


def _in_span(classes: ClassMeans) -> tuple[ClassMeans, Tensor | None]:
    """Return the means in a basis of their differences, and the basis ``[D, R]``; None if that would not be shorter."""
    means = classes.means - _centers(classes, classes.labels)[0]
    if 2 * len(means) >= means.shape[2]:
        return replace(classes, means=means), None
    basis = torch.linalg.qr(means.flatten(0, 1).T).Q
    return replace(classes, means=means @ basis), basis


def _centers(classes: ClassMeans, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over clients of both halves of these labels ``[G, 2, D]``, and the examples of each class."""
    size = int(torch.cat([classes.labels, labels]).max()) + 1 if len(labels) else 0
    counts = classes.counts.double()
    totals = torch.zeros(size, dtype=torch.float64).index_add_(0, classes.labels, counts)
    sums = _sums(counts[:, None, None] * classes.means, classes.labels, size)
    return (sums / totals.clamp_min(1e-300)[:, None, None])[labels], totals[labels]


def _away_from(classes: ClassMeans, others: ClassMeans) -> tuple[Tensor, Tensor]:
    """Return the differences from the means of others ``[G, 2, D]``, and their weights: 0 without the class there."""
    centers, totals = _centers(others, classes.labels)
    return classes.means - centers, torch.where(totals > 0, classes.counts.double(), 0.0)


def _covariance(classes: ClassMeans) -> tuple[Tensor, Tensor, Tensor]:
    """Return S, the differences from the class's mean over clients ``[G, 2, D]``, and their weights over V."""
    centers, totals = _centers(classes, classes.labels)
    away, sizes = classes.means - centers, classes.counts.double()
    weights = sizes / (sizes - sizes.square() / totals.clamp_min(1e-300)).sum().clamp_min(1e-300)
    product = (weights[:, None] * away[:, 0]).T @ away[:, 1]
    return (product + product.T) / 2.0, away, weights


def _round_weight(covariance: Tensor, away: Tensor, weights: Tensor, clients: Tensor, features: int) -> float:
    """Return the weight of the round ball that Ledoit and Wolf (2004) derive, with clients as draws."""
    numbers = clients.unique(return_inverse=True)[1]
    count = int(numbers.max()) + 1 if len(numbers) else 0
    error = 0.0
    for client in range(count):
        rows = numbers == client
        first, second = away[rows].unbind(1)
        share = float(weights[rows].sum() / weights.sum())
        scaled = weights[rows][:, None]
        mixed = first @ second.T
        square = (scaled * scaled.T * ((first @ first.T) * (second @ second.T) + mixed * mixed.T)).sum() / 2.0
        across = (weights[rows] * ((first @ covariance) * second).sum(1)).sum()
        error += float(square - 2.0 * share * across + share**2 * covariance.square().sum())
    spread = float(covariance.square().sum() - covariance.trace().square() / features)
    draws = count / max(1, count - 1)
    return min(1.0, max(LEAST_ROUND, draws * error / spread if spread > 0 else 1.0))


def _shape(covariance: Tensor, features: int, weight: float) -> Tensor | None:
    """Return M, whose mean eigenvalue is 1, or None if nothing positive remains."""
    trace = float(covariance.trace())
    if not trace > 0.0:
        return None
    values, vectors = torch.linalg.eigh(covariance)
    values = _with_sum(values, trace) * (features / trace)
    return (vectors * ((1.0 - weight) * values + weight)) @ vectors.T


def _with_sum(values: Tensor, total: float) -> Tensor:
    """Return the nearest numbers that are not negative and have this positive sum."""
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - total) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    return (values - excess[ordered > excess][-1]).clamp_min(0.0)


def _sums(values: Tensor, group: Tensor, groups: int) -> Tensor:
    return values.new_zeros(groups, *values.shape[1:]).index_add_(0, group, values)
