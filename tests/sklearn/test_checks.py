"""scikit-learn's own checks of an estimator, all of them."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from wafl.sklearn import WassersteinClassifier, WassersteinRegressor


@parametrize_with_checks([WassersteinClassifier(0.5), WassersteinRegressor()])
def test_scikit_learn_finds_nothing_wrong(estimator: Any, check: Any) -> None:
    check(estimator)


@parametrize_with_checks([WassersteinClassifier()])
def test_scikit_learn_finds_nothing_wrong_where_the_radius_is_chosen(estimator: Any, check: Any) -> None:
    check(estimator)
