"""``calibrate`` without groups against MAPIE, where it is installed: the same sets and intervals."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_diabetes, load_iris

from wafl.sklearn import WassersteinClassifier, WassersteinRegressor

mapie = pytest.importorskip("mapie.classification", reason="MAPIE is no dependency")


class Numbered(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose classes MAPIE reads."""

    def __init__(self, fitted):
        self.fitted = fitted
        self.classes_ = fitted.classes_
        self.n_features_in_ = fitted.n_features_in_

    def fit(self, x, y):
        return self

    def predict(self, x):
        return self.fitted.predict(x)

    def predict_proba(self, x):
        return self.fitted.predict_proba(x)


@pytest.mark.parametrize("coverage", [0.7, 0.8, 0.9, 0.95])
def test_sets_of_classes_are_mapies(coverage):
    x, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    train, calibrate, test = order[:40], order[40:99], order[99:]
    ours = WassersteinClassifier(radius=0.1, tol=1e-4).fit(x[train], y[train])
    theirs = mapie.SplitConformalClassifier(
        Numbered(ours), confidence_level=coverage, conformity_score="lac", prefit=True
    )
    theirs.conformalize(x[calibrate], y[calibrate])
    top, expected = theirs.predict_set(x[test])
    expected = expected[:, :, 0].copy()
    expected[np.arange(len(test)), top] = True  # ours never leaves a set empty
    ours.calibrate(x[calibrate], y[calibrate], coverage=coverage, score="probability")
    np.testing.assert_array_equal(ours.predict_set(x[test]), expected)


@pytest.mark.parametrize("coverage", [0.7, 0.9, 0.95])
def test_intervals_are_mapies(coverage):
    from mapie.regression import SplitConformalRegressor

    x, y = load_diabetes(return_X_y=True)
    ours = WassersteinRegressor(radius=0.0).fit(x[:200], y[:200])
    theirs = SplitConformalRegressor(ours, confidence_level=coverage, prefit=True).conformalize(x[200:321], y[200:321])
    _, intervals = theirs.predict_interval(x[321:])
    ours.calibrate(x[200:321], y[200:321], coverage=coverage)
    np.testing.assert_allclose(ours.predict_set(x[321:]), intervals[:, :, 0], rtol=1e-9)
