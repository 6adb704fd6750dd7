"""Linear models are at their optimum: against scipy on the plain dual, and regularized regressions of others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from wafl.sklearn import WassersteinClassifier, WassersteinRegressor

Array = NDArray[Any]
DUAL = {1: math.inf, 2: 2, math.inf: 1}
TIMES = np.linspace(0.0, 1.0, 801)


def drawn(seed: int = 0, classes: int = 2) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(40, 3)) * [1.0, 2.0, 0.5] + 1.0
    return x, (x @ generator.normal(size=(3, classes)) + generator.gumbel(size=(40, classes))).argmax(1)


def dual(
    z: Array, x: Array, y: Array, radius: float, norm: float, log_gamma: float, label_cost: float = math.inf
) -> float:
    """The dual of W_2 for two classes as it is written, each supremum on a grid along the steepest direction."""
    slope, margin, gamma = np.linalg.norm(z[:3], DUAL[norm]), (2 * y - 1) * (x @ z[:3] + z[3]), math.exp(log_gamma)
    t = TIMES * slope / (2 * gamma)

    def phi(lead: Array) -> Array:
        return (np.logaddexp(0, slope * t - lead[:, None]) - gamma * t**2).max(1)

    moved = phi(margin)
    if math.isfinite(label_cost):
        moved = np.maximum(moved, phi(-margin) - gamma * label_cost)
    return gamma * radius**2 + moved.mean()


def worst_loss(model: WassersteinClassifier, x: Array, y: Array, radius: float, label_cost: float = math.inf) -> float:
    z = np.append(model.coef_[0], model.intercept_)
    minimum = minimize_scalar(lambda each: dual(z, x, y, radius, model.norm, each, label_cost), bracket=(-2.0, 0.0))
    return minimum.fun


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("radius", [0.05, 0.4])
def test_the_classifier_is_at_the_optimum_that_scipy_finds_of_the_plain_dual(norm: float, radius: float) -> None:
    x, y = drawn()
    model = WassersteinClassifier(radius, norm=norm).fit(x, y)
    assert worst_loss(model, x, y, radius) == pytest.approx(model.worst_loss_, rel=1e-5)
    start = np.append(0.8 * model.coef_[0], [0.0, -1.0])
    options = {"maxiter": 1000, "xatol": 1e-7, "fatol": 1e-9, "adaptive": True}
    minimum = minimize(lambda z: dual(z, x, y, radius, norm, z[4]), start, method="Nelder-Mead", options=options)
    assert model.worst_loss_ * (1 - 1e-5) <= minimum.fun <= model.worst_loss_ * 1.02


def test_labels_that_move_are_part_of_the_optimum() -> None:
    x, y = drawn()
    model = WassersteinClassifier(0.3, label_cost=1.0).fit(x, y)
    assert worst_loss(model, x, y, 0.3, 1.0) == pytest.approx(model.worst_loss_, rel=1e-5)
    fixed = WassersteinClassifier(0.3).fit(x, y)
    assert worst_loss(fixed, x, y, 0.3, 1.0) > model.worst_loss_ * 1.001


@pytest.mark.filterwarnings("ignore:'penalty' was deprecated")  # old versions of scikit-learn need it
def test_power_1_in_l_inf_is_logistic_regression_with_an_l1_penalty() -> None:
    x, y = drawn(1)
    x = x - x.mean(0)
    model = WassersteinClassifier(0.02, norm=math.inf, power=1).fit(x, y)
    l1: dict[str, Any] = {"penalty": "elasticnet", "l1_ratio": 1.0, "C": 1 / (0.02 * len(x))}
    known = LogisticRegression(**l1, solver="saga", tol=1e-9, max_iter=20_000).fit(x, y)
    np.testing.assert_allclose(model.coef_, known.coef_, atol=1e-4)
    np.testing.assert_allclose(model.intercept_, known.intercept_, atol=1e-4)


def test_power_1_with_labels_that_move_is_at_the_optimum_of_a_convex_solver() -> None:
    """The data and the optimum are from research/exploratory/optimum.py."""
    data: Any = load_breast_cancer()
    x, _, y, _ = train_test_split(data.data, data.target, test_size=0.3, random_state=0)
    model = WassersteinClassifier(0.2, power=1, label_cost=2.0).fit((x - x.mean(0)) / x.std(0), y)
    assert model.worst_loss_ == pytest.approx(0.52160, abs=1e-5)


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_regression_is_the_square_root_lasso_of_its_norm(norm: float) -> None:
    x, _ = drawn(2)
    y = 100.0 + 30.0 * (x @ [1.0, -0.5, 0.0]) + np.random.default_rng(5).normal(size=len(x))
    model = WassersteinRegressor(0.1, norm=norm).fit(x, y)

    def worst(z: Array) -> float:
        return (math.sqrt(np.mean((x @ z[:-1] + z[-1] - y) ** 2)) + 0.1 * np.linalg.norm(z[:-1], DUAL[norm])) ** 2

    params = np.append(model.coef_, model.intercept_)
    assert worst(params) == pytest.approx(model.worst_loss_, rel=1e-9)
    minimum = minimize(
        worst, params + 0.1, method="Nelder-Mead", options={"maxiter": 3000, "xatol": 1e-9, "fatol": 1e-10}
    )
    assert minimum.fun >= model.worst_loss_ * (1 - 1e-7)


@pytest.mark.parametrize(("norm", "power"), [(2, 2), (2, 1), (math.inf, 1)])
def test_three_classes_agree_with_their_certificate(norm: float, power: int) -> None:
    x, y = drawn(3, classes=3)
    model = WassersteinClassifier(0.2, norm=norm, power=power).fit(x, y)
    row = model.certify([0.2])[0]
    assert row.achieved is not None
    assert row.achieved <= model.worst_loss_ * (1 + 1e-6) <= row.value * (1 + 2e-6)


def test_a_solver_that_is_cut_short_says_so() -> None:
    x, y = drawn()
    with pytest.warns(UserWarning, match="raise max_iter"):
        WassersteinClassifier(0.1, max_iter=2).fit(x, y)
