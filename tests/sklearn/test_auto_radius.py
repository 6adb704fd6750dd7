"""``radius="auto"``: a radius that leaves a constant model, of which held-out examples or clients choose a part."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import log_loss

from wafl.sklearn import WassersteinClassifier, WassersteinRegressor
from wafl.sklearn.auto_radius import choose_radius, largest_radius
from wafl.sklearn.linear import solve
from wafl.sklearn.worst_case import Ball

Array = NDArray[Any]


def table(classes: int | None, rows: int = 60, columns: int = 5, seed: int = 0) -> tuple[Array, Array]:
    """Return examples whose first two columns say something about their targets."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, columns)) + 3.0
    signal = x[:, 0] - 0.5 * x[:, 1] + 0.5 * random.normal(size=rows)
    y = signal if classes is None else np.digitize(signal, np.quantile(signal, np.arange(1, classes) / classes))
    return x, y


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("classes", [None, 2, 3])
def test_the_largest_radius_leaves_a_constant_model(classes: int | None, norm: float) -> None:
    x, y = table(classes, rows=30, columns=3)
    radius = largest_radius(x, y, classes, norm)

    def weights(part: float) -> float:
        return float(np.abs(solve(x, y, classes, Ball(part * radius, norm), 1e-9, 500).weight).max())

    assert weights(1.001) < 1e-2
    if classes != 3 or norm == 2:
        assert weights(0.8) > 1e-2, "a smaller radius does not"


def test_with_two_classes_it_is_the_distance_of_their_means_times_their_deviation() -> None:
    x, y = table(2)
    share, means = y.mean(), [x[y == label].mean(0) for label in (0, 1)]
    distance = np.linalg.norm(means[1] - means[0])
    assert largest_radius(x, y, 2, 2) == pytest.approx(math.sqrt(share * (1 - share)) * distance)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_classifier_with_noise_columns_is_as_good_as_with_decay() -> None:
    x, y = table(2, rows=200, columns=30)
    model = WassersteinClassifier(tol=1e-5).fit(x[:80], y[:80])
    decay = LogisticRegressionCV(Cs=np.logspace(-4, 4, 17).tolist(), scoring="neg_log_loss", cv=5, max_iter=1000).fit(
        x[:80], y[:80]
    )
    ours, theirs = (log_loss(y[80:], each.predict_proba(x[80:])) for each in (model, decay))
    assert ours < 1.05 * theirs
    assert ours < math.log(2)


def test_on_noise_alone_the_model_is_mostly_constant_even_with_few_examples() -> None:
    constant = 0
    for seed in range(12):
        x, y = np.random.default_rng(seed + 100).normal(size=(15, 12)), table(None, 15, seed=seed)[1]
        constant += choose_radius(x, y, np.zeros(15, int), None, Ball(0.0)) == largest_radius(x, y, None, 2)
    assert constant >= 9


def test_held_out_clients_judge_if_there_are_four() -> None:
    """A column that tells the clients apart, with one target per client, says nothing about a new one."""
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(10), 8)
    x = np.eye(10)[groups] + 0.1 * random.normal(size=(80, 10))
    y = random.normal(size=10)[groups] + 0.1 * random.normal(size=80)
    alone = choose_radius(x, y, np.zeros(80, int), None, Ball(0.0))
    assert choose_radius(x, y, groups, None, Ball(0.0)) == largest_radius(x, y, None, 2) > 4.0 * alone


def test_a_class_with_one_example_and_targets_without_slope_are_no_obstacle() -> None:
    x, y = table(2)
    x_few, y_few = x[:20], np.append(y[1:20], 2)
    assert 0.0 < choose_radius(x_few, y_few, np.zeros(20, int), 3, Ball(0.0)) < math.inf
    assert choose_radius(x, np.ones(60), np.zeros(60, int), None, Ball(0.0)) == 0.0
    assert choose_radius(np.ones((60, 2)), y, np.zeros(60, int), 2, Ball(0.0)) == 0.0


def test_a_network_takes_the_radius_of_the_linear_model() -> None:
    x, y = table(None)
    network = WassersteinRegressor(hidden=(3,), max_iter=1, random_state=0).fit(x, y)
    assert network.radius_ == WassersteinRegressor().fit(x, y).radius_
