"""Choose the radius for ``radius="auto"`` on held-out clients, or on held-out examples if clients are few."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.model_selection import GroupKFold, KFold

from wafl.sklearn.descent import Array
from wafl.sklearn.linear import solve
from wafl.sklearn.worst_case import Ball

FOLDS = 5
FEWEST_CLIENTS = 4
"""The minimum number of clients for folds of clients; with fewer, the folds are of examples."""
HALVINGS, WORSE = 10, 2
"""How often the largest radius is halved, at most, and how many worse radii in a row end the search."""
GAPS, FLAT = (0.5, 0.25, 0.125), 0.02
"""The finer steps around the best radius, in halvings, and the relative change of the loss that ends them."""
CLEAR = 1.0
"""The gain over a constant model that counts, in standard errors."""
CRUDE, FEW_STEPS = 1e-4, {True: 40, False: 1000}
"""The tolerance, and the maximum number of steps by whether it classifies, of a model that is only judged."""


def choose_radius(x: Array, y: Array, groups: Array, classes: int | None, ball: Ball) -> float:
    """Choose the radius of a linear model on these examples, whose clients are ``groups`` (0, 1, ...).

    Folds of the clients, or of the examples if there are fewer than four clients, judge fractions of the largest radius
    (:func:`largest_radius`) by the log-loss, or by the squared error without ``classes``: 1, 1/2, 1/4 and so on, and
    then finer steps around the best. In each fold, a fraction is of the fold's largest radius. The result is the
    largest radius, and so a constant model, unless another one gains a standard error.
    """
    whole = largest_radius(x, y, classes, ball.norm)
    if not whole > 0.0 or len(x) < 2:
        return whole
    folds = list(_folds(x, groups))
    known: dict[float, Array] = {}

    def losses(halvings: float) -> Array:
        if halvings not in known:
            known[halvings] = _held_out(x, y, classes, ball, 0.5**halvings, folds)
        return known[halvings]

    def loss(halvings: float) -> float:
        return float(losses(halvings).mean())

    best = 0.0
    for halvings in range(1, HALVINGS + 1):
        if loss(halvings) < loss(best):
            best = float(halvings)
        elif halvings - best >= WORSE:
            break
    for gap in GAPS:
        around = max(best - gap, 0.0), best + gap
        worst = max(map(loss, around))
        best = min(best, *around, key=loss)
        if worst <= (1.0 + FLAT) * loss(best):
            break
    gains = losses(0.0) - losses(best)
    clear = gains.mean() > CLEAR * gains.std() / len(gains) ** 0.5
    return whole * 0.5**best if clear else whole


def largest_radius(x: Array, y: Array, classes: int | None, norm: float) -> float:
    """Return a radius that leaves a constant model: the smallest such radius for a regression, and for classes in l2.

    For classes it is the root mean square distance of an example's class mean from the mean. For one weight vector,
    the worst loss at 0 falls along the covariance of inputs and targets unless the radius exceeds its norm, in units of
    the targets' standard deviation.
    """
    targets = (y - y.mean())[:, None] if classes is None else np.eye(classes)[y]
    scale = np.sqrt((targets**2).mean(0))
    slopes = (targets - targets.mean(0)).T @ (x - x.mean(0)) / len(x) / np.where(scale > 0.0, scale, 1.0)[:, None]
    return float(np.linalg.norm(np.linalg.norm(slopes, norm, axis=1)))


def _folds(x: Array, groups: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the rows that train, and the rows that judge them."""
    clients = int(groups.max()) + 1
    if clients >= FEWEST_CLIENTS:
        yield from GroupKFold(min(FOLDS, clients)).split(x, groups=groups)
    else:
        yield from KFold(min(FOLDS, len(x)), shuffle=True, random_state=0).split(x)


def _held_out(x: Array, y: Array, classes: int | None, ball: Ball, fraction: float, folds: Any) -> Array:
    """Return each example's loss while it is held out; 0 for a class that is not among the other examples."""
    losses = np.zeros(len(x))
    for train, test in folds:
        seen, targets, present, count = x[train], y[train], np.zeros(1, int), None
        if classes is not None:
            present, targets = np.unique(targets, return_inverse=True)
            test, count = test[np.isin(y[test], present)], len(present)
        radius = fraction * largest_radius(seen, targets, count, ball.norm)
        steps, there = FEW_STEPS[classes is not None], replace(ball, radius=radius)
        with np.errstate(over="ignore", invalid="ignore"):  # the search rejects steps whose loss is not a number
            model = solve(seen, targets, count, there, CRUDE, steps, restarts=False)
        outputs = np.full((len(test), classes or 1), -np.inf)
        outputs[:, present] = x[test] @ model.weight.T + model.bias
        if classes is None:
            losses[test] = (outputs[:, 0] - y[test]) ** 2
        else:
            losses[test] = np.logaddexp.reduce(outputs, -1) - outputs[np.arange(len(test)), y[test]]
    return losses
