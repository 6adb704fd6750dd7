"""``calibrate`` and ``predict_set`` against split conformal prediction by hand, and with groups."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError

from tests.oracles import conformal
from wafl.sets.answers import with_room
from wafl.sklearn import WassersteinClassifier, WassersteinRegressor

X, Y = load_iris(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(150)
TRAIN, CALIBRATE, TEST = ORDER[:50], ORDER[50:109], ORDER[109:]
LABELS = np.array(["setosa", "versicolor", "virginica"])[Y]


@pytest.fixture(scope="module")
def classifier():
    return WassersteinClassifier(radius=0.1, tol=1e-4).fit(X[TRAIN], LABELS[TRAIN])


def test_without_groups_it_is_split_conformal_prediction(classifier):
    """The score 1 - p_y is MAPIE's "lac": a class is in the set if p is at least 1 - the quantile."""
    p = classifier.predict_proba(X)
    scores = 1.0 - p[np.arange(150), Y]
    for coverage in ("0.8", "0.9", "0.95"):
        classifier.calibrate(X[CALIBRATE], LABELS[CALIBRATE], coverage=float(coverage), score="probability")
        quantile = conformal.split_conformal(scores[CALIBRATE].tolist(), coverage)
        assert classifier.sets_.threshold == pytest.approx(quantile, rel=1e-9)
        expected = 1.0 - p[TEST] <= classifier.sets_.threshold
        expected[np.arange(len(TEST)), p[TEST].argmax(1)] = True
        np.testing.assert_array_equal(classifier.predict_set(X[TEST]), expected)
    assert "the next example of the next client" in classifier.sets_.statement


def test_intervals_are_those_of_split_conformal_prediction():
    x, y = load_diabetes(return_X_y=True)
    model = WassersteinRegressor(radius=0.0).fit(x[:200], y[:200]).calibrate(x[200:321], y[200:321], coverage=0.9)
    residuals = np.abs(y[200:321] - model.predict(x[200:321]))
    half = with_room(conformal.split_conformal(residuals.tolist(), "0.9"))
    center = model.predict(x[321:])
    np.testing.assert_allclose(model.predict_set(x[321:]), np.stack([center - half, center + half], 1), rtol=1e-9)


def test_groups_are_clients(classifier):
    groups = np.arange(len(CALIBRATE)) % 11
    classifier.calibrate(X[CALIBRATE], LABELS[CALIBRATE], groups, about="client", coverage=0.7)
    assert classifier.sets_.calibrated.names == tuple(sorted(map(str, range(11)), key=int))
    assert "at least 70% of the next client's examples, with 91% confidence, the most that 11" in str(classifier.sets_)
    moved = classifier.calibrate(X[CALIBRATE], LABELS[CALIBRATE], groups, coverage=0.7, radius=0.05).sets_
    assert moved.target.shift.norm == classifier.norm
    assert moved.threshold < math.inf


def test_groups_and_examples_that_trained_are_refused(classifier):
    with pytest.raises(ValueError, match=r"b has the examples of trained 0"):
        classifier.calibrate(X[TRAIN], LABELS[TRAIN], ["b"] * 50, coverage=0.4)
    grouped = WassersteinClassifier(radius=0.1, tol=1e-4).fit(X[TRAIN], LABELS[TRAIN], groups=np.arange(50) % 5)
    with pytest.raises(ValueError, match="0 trained, or has the name"):
        grouped.calibrate(X[CALIBRATE], LABELS[CALIBRATE], np.arange(len(CALIBRATE)) % 7, coverage=0.5)
    with pytest.raises(NotFittedError, match="call calibrate"):
        grouped.predict_set(X[TEST])
