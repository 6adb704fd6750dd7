"""Choose the radius for ``radius="auto"`` on held-out clients, or on held-out examples if clients are few."""

import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from wafl.base.errors import DivergedError, UnboundedError
from wafl.base.norms import typical_length
from wafl.sklearn.descent import Array
from wafl.train.chosen_radius import FEWEST, best_index, candidates, halves

FOLDS = 3
FEWEST_EXAMPLES = 20
"""The minimum number of examples; with fewer, a fold has almost no information."""
USUAL = 0.1
"""The default radius without held-out data, as a fraction of the distance of a client's examples from their mean."""
FINE_FOLDS, HALVINGS = 5, 10
"""For a regression: the folds, and how often they halve the radius of a constant model."""
CRUDE, FEW_STEPS = 1e-4, 40
"""The tolerance and the maximum number of steps of a solver whose model is only judged."""


def choose_radius(estimator: Any, x: Array, y: Array, groups: Array) -> float:
    """Choose a radius for the estimator on these examples, whose clients are ``groups`` (0, 1, ...).

    A linear regression with fewer than four clients is judged by five folds: :func:`_by_folds`. Otherwise the
    candidates are 0.01, 0.03, 0.1 and 0.3 times the distance of a client's examples from their mean. With four
    clients or more, each half of them judges models of the other half; with fewer, three folds of the examples do. The
    result is the smallest candidate that is not clearly worse than the best
    (:func:`wafl.train.chosen_radius.best_index`). It is the third candidate if there are fewer than 20 examples and
    fewer than four clients, or if no training part has two classes.
    """
    apart = np.concatenate([x[groups == client] - x[groups == client].mean(0) for client in np.unique(groups)])
    spread = float(np.sqrt(np.mean((apart**2).sum(-1))))
    if spread == 0.0:
        return 0.0
    if int(groups.max()) + 1 < FEWEST and len(x) >= FEWEST_EXAMPLES and _solves_regression(estimator):
        return _by_folds(estimator, x, y, groups)
    values = [judged for fold in _folds(x, groups) for judged in _judged(estimator, x, y, groups, *fold, spread)]
    if not values:
        return USUAL * spread * typical_length(estimator.norm, x.shape[1])
    index, _ = best_index(torch.tensor(np.array(values)).T, larger_is_better=is_classifier(estimator))
    return candidates(spread, estimator.norm, x.shape[1])[index]


def _solves_regression(estimator: Any) -> bool:
    return not is_classifier(estimator) and not tuple(estimator.hidden)


def _by_folds(estimator: Any, x: Array, y: Array, groups: Array) -> float:
    """Return the radius with the smallest mean squared error over folds of the examples.

    The largest candidate leaves a constant model, and each other candidate is half of the one before.
    """
    residual = y - y.mean()
    # The worst loss at w = 0 falls along these slopes unless the radius exceeds their norm.
    slopes = residual @ x / len(x) / (float(residual.std()) or 1.0)
    radii = float(np.linalg.norm(slopes, estimator.norm)) * 0.5 ** np.arange(HALVINGS + 1)
    errors = np.zeros(len(radii))
    for train, test in KFold(FINE_FOLDS, shuffle=True, random_state=0).split(x):
        for index, radius in enumerate(radii):
            model: Any = clone(estimator)
            model.set_params(radius=float(radius), tol=max(estimator.tol, CRUDE))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(x[train], y[train], groups[train])
            errors[index] += np.mean((model.predict(x[test]) - y[test]) ** 2)
    return float(radii[errors.argmin()])


def _folds(x: Array, groups: Array) -> Iterator[tuple[Array, list[Array]]]:
    """Yield the rows that train, and the rows of each client, or of the fold, that judges them."""
    clients = int(groups.max()) + 1
    if clients >= FEWEST:
        for left_out in halves(clients, 0):
            yield ~np.isin(groups, left_out), [groups == client for client in left_out]
    elif len(x) >= FEWEST_EXAMPLES:
        for train, test in KFold(FOLDS, shuffle=True, random_state=0).split(x):
            yield train, [test]


def _judged(
    estimator: Any, x: Array, y: Array, groups: Array, train: Array, judges: list[Array], spread: float
) -> list[list[float]]:
    """Return the accuracy, or the squared error, of each candidate for each judge; NaN where training diverged."""
    classifies = is_classifier(estimator)
    if classifies and len(np.unique(y[train])) < 2:
        return []
    values = np.full((len(judges), len(radii := candidates(spread, estimator.norm, x.shape[1]))), np.nan)
    for index, radius in enumerate(radii):
        model: Any = clone(estimator)
        model.set_params(radius=radius, tol=max(estimator.tol, CRUDE))
        if not tuple(estimator.hidden):
            model.set_params(max_iter=FEW_STEPS)
        with suppress(DivergedError, UnboundedError), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(x[train], y[train], groups[train])
            for judge, rows in enumerate(judges):
                predicted = model.predict(x[rows])
                values[judge, index] = np.mean(predicted == y[rows] if classifies else (predicted - y[rows]) ** 2)
    return values.tolist()
