"""Objectives of a softmax regression with weights ``[C, D + 1]``, the biases last, and their exact gradients.

All are means over examples in double precision. ``root`` is the matrix A of a ball in which the move ``A v`` costs
``||v||``; biases do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Objective = Callable[[Array], tuple[float, Array]]
"""The value and the gradient at weights."""

PAIRS_POWER = 64
"""The power of the norm over pairs of classes that replaces their maximum: at most 6% above it for ten classes."""
SMOOTH = 1e-9
"""Added to squared norms, whose roots have a kink at 0."""
MARGIN = 1.25
"""How far gamma stays above the curvature where the inner problem of a ball of order 2 stops being concave."""
INNER_STEPS = 500
INNER_PRECISION = 1e-8
"""The largest last change of a probability in the inner problem of a ball of order 2."""
TINY = 1e-300


def log_softmax(logits: Array) -> Array:
    """Return the logarithms of probabilities, along the last axis; faster than scipy for few examples."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def softmax(logits: Array) -> Array:
    """Return probabilities, along the last axis; faster than scipy for few examples."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Examples:
    """Features ``[N, D]``, labels ``[N]`` and clients ``[N]``, numbered from 0."""

    x: Array
    y: Array
    owner: Array
    classes: int

    @cached_property
    def inputs(self) -> Array:
        """The features and a one, for the bias ``[N, D + 1]``."""
        return np.hstack([self.x, np.ones((len(self.x), 1))])

    @cached_property
    def targets(self) -> Array:
        """The labels as unit vectors ``[N, C]``."""
        return np.eye(self.classes)[self.y]

    @property
    def clients(self) -> int:
        """The number of clients."""
        return int(self.owner.max()) + 1

    def of(self, clients: Array) -> Examples:
        """Return the examples of these clients, numbered in their order."""
        place = np.full(self.clients, -1)
        place[clients] = np.arange(len(clients))
        rows = place[self.owner] >= 0
        return Examples(self.x[rows], self.y[rows], place[self.owner[rows]], self.classes)

    def logits(self, weights: Array) -> Array:
        """Return the outputs of a model ``[N, C]``."""
        return self.inputs @ weights.T

    def losses(self, logits: Array) -> Array:
        """Return the log-loss of each example."""
        return -log_softmax(logits)[np.arange(len(self.y)), self.y]


def cross_entropy(examples: Examples) -> Objective:
    """Return the mean log-loss."""

    def objective(weights: Array) -> tuple[float, Array]:
        logits = examples.logits(weights)
        residuals = softmax(logits) - examples.targets
        return float(examples.losses(logits).mean()), residuals.T @ examples.inputs / len(examples.y)

    return objective


def decayed(objective: Objective, size: float, root: Array | None = None) -> Objective:
    """Add ``size / 2 ||W A||^2``: weight decay in the metric of the root, or plain without one."""

    def penalized(weights: Array) -> tuple[float, Array]:
        value, gradient = objective(weights)
        slopes = weights[:, :-1]
        metric = slopes if root is None else slopes @ root @ root.T
        gradient = gradient + size * np.pad(metric, ((0, 0), (0, 1)))
        return value + 0.5 * size * float((metric * slopes).sum()), gradient

    return penalized


def diameter(weights: Array, root: Array) -> tuple[float, Array]:
    """Return the largest ``||A^T (w_j - w_k)||`` of two classes, and its gradient.

    A power norm over the pairs replaces the maximum, which has kinks.
    """
    first, second = np.triu_indices(len(weights), 1)
    apart = (weights[first, :-1] - weights[second, :-1]) @ root
    lengths = np.sqrt((apart**2).sum(1) + SMOOTH)
    largest = lengths.max()
    shares = (lengths / largest) ** PAIRS_POWER
    norm = float(largest * shares.sum() ** (1.0 / PAIRS_POWER))
    slopes = (norm / shares.sum() * shares / lengths**2)[:, None] * (apart @ root.T)
    gradient = np.zeros_like(weights)
    np.add.at(gradient[:, :-1], first, slopes)
    np.subtract.at(gradient[:, :-1], second, slopes)
    return norm, gradient


def ball_of_order_one(examples: Examples, radius: float, root: Array) -> Objective:
    """Return the worst mean log-loss in a W_1 ball with fixed labels: the loss, and the radius times the diameter."""
    plain = cross_entropy(examples)

    def objective(weights: Array) -> tuple[float, Array]:
        value, gradient = plain(weights)
        norm, steeper = diameter(weights, root)
        return value + radius * norm, gradient + radius * steeper

    return objective


def ball_of_order_two(examples: Examples, radius: float, root: Array, precision: float = INNER_PRECISION) -> Objective:
    """Return the dual bound on the worst mean log-loss in a W_2 ball with fixed labels.

    The bound is the smallest ``gamma radius^2 + E[phi_gamma]`` over the gammas of at least ``MARGIN L_zz / 2``, where
    the inner problem is concave; ``L_zz`` is the squared diameter over 4. It is the worst loss itself if the best gamma
    is one of these. With probabilities ``p_i`` and ``r_i = p_i - y_i``,

        phi_gamma = max over p_i of <r_i, s_i> + H(p_i) + ||A^T W^T r_i||^2 / (4 gamma),

    so the best gamma is ``sqrt(mean ||A^T W^T r_i||^2) / (2 radius)``, or the smallest. Then the bound is the maximum
    over all p of a concave part plus a convex part, and a step that replaces the convex part by its tangent increases
    it. The gradient takes p and gamma as constants, because both are optimal.
    """
    start: list[Array] = []

    def objective(weights: Array) -> tuple[float, Array]:
        logits, factor = examples.logits(weights), weights[:, :-1] @ root
        gram, count = factor @ factor.T, len(examples.y)
        norm, steeper = diameter(weights, root)
        least = MARGIN * norm**2 / 8.0

        def moved(p: Array) -> tuple[Array, Array, float, float]:
            residuals = p - examples.targets
            to = residuals @ gram
            square = float((to * residuals).sum()) / count + SMOOTH
            return residuals, to, square, max(least, math.sqrt(square) / (2.0 * radius))

        p = start[0] if start else softmax(logits)
        for _ in range(INNER_STEPS):
            _, to, _, gamma = moved(p)
            before, p = p, softmax(logits + to / (2.0 * gamma))
            if np.abs(p - before).max() < precision:
                break
        start[:] = [p]
        residuals, _, square, gamma = moved(p)
        entropies = -(p * np.log(np.maximum(p, TINY))).sum()
        value = ((residuals * logits).sum() + entropies) / count + square / (4.0 * gamma) + gamma * radius**2
        slopes = (residuals.T @ residuals / count) @ factor @ root.T / (2.0 * gamma)
        gradient = residuals.T @ examples.inputs / count + np.pad(slopes, ((0, 0), (0, 1)))
        if gamma == least:
            gradient = gradient + (radius**2 - square / (4.0 * gamma**2)) * MARGIN * norm / 4.0 * steeper
        return float(value), gradient

    return objective


def random_moves(examples: Examples, size: float, root: Array, draws: int = 4) -> Objective:
    """Return the mean log-loss of examples moved by ``size A n / sqrt(D)``, with fixed antithetic draws n."""
    normal = np.random.default_rng(0).standard_normal((draws // 2, *examples.x.shape))
    moves = size * np.concatenate([normal, -normal]) @ root.T / np.sqrt(examples.x.shape[1])
    every = (examples.x + moves).reshape(-1, examples.x.shape[1])
    return cross_entropy(Examples(every, np.tile(examples.y, draws), np.tile(examples.owner, draws), examples.classes))


def group_dro(examples: Examples, size: float) -> Objective:
    """Return ``log(mean over clients of exp(size loss_i)) / size``: the mean for a small size, the maximum for a large.

    This is the worst mean over weights of the clients, less their Kullback-Leibler divergence over ``size``.
    """
    counts = np.bincount(examples.owner)

    def objective(weights: Array) -> tuple[float, Array]:
        logits = examples.logits(weights)
        losses = np.bincount(examples.owner, examples.losses(logits)) / counts
        shares = softmax(size * losses)
        value = losses.max() + np.log(np.exp(size * (losses - losses.max())).mean()) / size
        residuals = (softmax(logits) - examples.targets) * (shares / counts)[examples.owner][:, None]
        return float(value), residuals.T @ examples.inputs

    return objective


def invariant_risk(examples: Examples, size: float) -> Objective:
    """Return IRMv1: the mean log-loss and ``size`` times the mean over clients of the squared slope in a scale at 1.

    Scaled by ``1 / (1 + size)``, so that large sizes do not blow up the objective. It is not convex.
    """
    counts = np.bincount(examples.owner)

    def objective(weights: Array) -> tuple[float, Array]:
        logits = examples.logits(weights)
        p = softmax(logits)
        residuals = p - examples.targets
        slopes = np.bincount(examples.owner, (residuals * logits).sum(1)) / counts
        bent = residuals + p * (logits - (p * logits).sum(1, keepdims=True))
        factor = (2.0 * size * slopes / counts / len(counts))[examples.owner][:, None]
        value = examples.losses(logits).mean() + size * (slopes**2).mean()
        gradient = (residuals / len(residuals) + factor * bent).T @ examples.inputs
        return float(value) / (1.0 + size), gradient / (1.0 + size)

    return objective
