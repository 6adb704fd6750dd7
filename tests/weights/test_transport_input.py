"""Bad input is refused before any work, with the value, the range and the remedy."""

import numpy as np
import pytest
import torch

from wafl import weights
from wafl.weights.transport import distance

good = np.zeros((4, 2))
bad_point = np.array([[0.0, np.nan]])
with_target = [weights.nearest, weights.mixture]
without = [weights.cover, weights.barycenter]


@pytest.fixture(autouse=True)
def _no_work(monkeypatch):
    """Solving anything fails the test."""
    import ot

    def fail(*_, **__):
        raise AssertionError("work was started")

    for name in ("emd", "solve", "dist"):
        monkeypatch.setattr(ot, name, fail)


@pytest.mark.parametrize("rule", with_target)
@pytest.mark.parametrize(
    ("sources", "target", "options", "message"),
    [
        ([], good, {}, "there is no source: give at least one"),
        ([good, np.zeros((0, 2))], good, {}, r"source 1 has examples of shape \(0, 2\): give at least one point"),
        ([good], np.zeros((0, 2)), {}, r"the target has examples of shape \(0, 2\): give at least one point"),
        ([np.zeros((3, 0))], good, {}, r"source 0 has examples of shape \(3, 0\)"),
        ([5.0], good, {}, r"source 0 has examples of shape \(\)"),
        ([good, "cloud"], good, {}, r"source 1 is neither an array x nor a pair of arrays \(x, y\)"),
        ([[[1.0, 2.0], [3.0]]], good, {}, "source 0 is neither an array x nor a pair"),
        ([good, bad_point], good, {}, "source 1 has NaN or infinity among its examples: clean or drop those"),
        ([good], np.full((3, 2), np.inf), {}, "the target has NaN or infinity"),
        ([good, np.zeros((4, 3))], good, {}, "source 1 has examples of 3 numbers, source 0 of 2: all must lie in one"),
        ([good], np.zeros((4, 5)), {}, "the target has examples of 5 numbers, source 0 of 2"),
        ([good], good, {"sample": 0}, "sample=0 must be at least 1 point, or None for all"),
        ([good], good, {"sample": 2.5}, "sample=2.5 must be a whole number"),
        ([good], good, {"seed": -1}, "seed=-1 must lie in 0"),
        ([good], good, {"label_aware": True}, "source 0 has no labels: label_aware=True needs one integer label"),
        ([(good, np.zeros(4))], good, {"label_aware": True}, r"source 0 has labels of shape \(4,\) and type"),
        ([(good, np.zeros(3, int))], good, {"label_aware": True}, r"source 0 has labels of shape \(3,\)"),
        ([(good, np.zeros(4, int))], good, {"label_aware": True}, "the target has no labels"),
        ([good], good, {"label_cost": 1.0}, "source 0 has no labels: label_cost=1 needs one class or target"),
        ([(good, np.zeros((4, 2), int))], good, {"label_cost": 1.0}, r"source 0 has labels of shape \(4, 2\)"),
        ([good], good, {"label_cost": np.inf}, "label_cost=inf must be positive and finite"),
        ([good], good, {"label_cost": 1.0, "label_aware": True}, "two prices of a label: give one"),
        ([(good, np.zeros(4, int))], good, {"exchange": "cuts", "label_cost": 2.0}, "label_cost=2 cannot"),
        ([good], good, {"features": lambda x: x[:1]}, r"source 0: features made \(1, 2\) numbers of 4 examples"),
        ([good], good, {"features": lambda x: x / 0}, "source 0: features made .* NaN or infinity"),
        ([(good, np.zeros(4, int))], good, {"exchange": "cuts", "label_aware": True}, "label_aware=True cannot"),
        ([good], good, {"exchange": "cut"}, "exchange='cut' must be 'examples' or 'cuts'"),
    ],
)  # fmt: skip
def test_bad_sources_and_targets_are_refused(rule, sources, target, options, message):
    with pytest.raises(ValueError, match=message):
        rule(sources, target, **options)


@pytest.mark.parametrize("rule", without)
@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([], {}, "there is no client: give at least one"),
        ([good, bad_point], {}, "client 1 has NaN or infinity"),
        ([good, np.zeros((4, 3))], {}, "client 1 has examples of 3 numbers, client 0 of 2"),
        ([good], {"sample": -3}, "sample=-3 must be at least 1 point"),
        ([good], {"seed": 2**32}, "seed=4294967296 must lie in"),
    ],
)
def test_bad_clients_are_refused(rule, clients, options, message):
    with pytest.raises(ValueError, match=message):
        rule(clients, **options)


@pytest.mark.parametrize(
    "call", [lambda **o: weights.nearest([good], good, **o), lambda **o: distance(good, good, **o)]
)
def test_bad_methods_and_regularizations_are_refused(call):
    with pytest.raises(ValueError, match="method='sinkhorn' must be 'exact' or 'entropic'"):
        call(method="sinkhorn")
    for regularization in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=f"regularization={regularization} must be positive and finite"):
            call(method="entropic", regularization=regularization)


def test_the_entropic_distance_from_cuts_is_refused():
    with pytest.raises(ValueError, match="method='entropic' cannot be used with exchange='cuts'"):
        weights.nearest([good], good, method="entropic", exchange="cuts")


@pytest.mark.parametrize("tolerance", [0.0, -1e-3, float("nan"), float("inf")])
def test_a_tolerance_that_is_not_positive_and_finite_is_refused(tolerance):
    for call in (
        lambda t: weights.mixture([good], good + 1, tolerance=t),
        lambda t: weights.mixture([good], good + 1, tolerance=t, exchange="cuts"),
        lambda t: weights.cover([good], tolerance=t),
    ):
        with pytest.raises(ValueError, match=f"tolerance={tolerance} must be positive and finite"):
            call(tolerance)


@pytest.mark.parametrize(
    ("call", "factor"),
    [
        (lambda x: distance(x, x + 1, sample=None), 2.0),
        (lambda x: weights.nearest([x[:5], x], x + 1, sample=None), 2.0),
        (lambda x: weights.mixture([x[:5000]] * 4, x + 1, sample=None), 2.0),
        (lambda x: weights.cover([x[:5000]] * 4, sample=None), 2.0),
        (lambda x: weights.barycenter([x, x], sample=None), 2.0),
    ],
)
def test_too_many_costs_are_refused_with_the_remedy(call, factor):
    message = rf"4e\+08 costs between points are more than the limit of 1e\+08: draw {factor} times fewer points"
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(20_000, 1))
