"""The paper's bilevel barycenter program: against quantiles on a line, Gaussians, and its own bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from wafl import weights

Points = NDArray[np.float64]
shares = st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3).map(lambda raw: [each / sum(raw) for each in raw])


def squared_distance_on_a_line(x: Points, mass: Points, y: Points) -> float:
    """The squared difference of the two quantile functions, integrated between all of their steps."""
    order, other = np.argsort(x), np.sort(y)
    ends, steps = np.cumsum(mass[order]), np.arange(1, len(y) + 1) / len(y)
    edges = np.unique(np.concatenate([[0.0], ends, steps]).clip(0.0, 1.0))
    middle = (edges[1:] + edges[:-1]) / 2
    at_x = x[order][np.searchsorted(ends, middle).clip(max=len(x) - 1)]
    at_y = other[np.searchsorted(steps, middle).clip(max=len(y) - 1)]
    return float(np.diff(edges) @ (at_x - at_y) ** 2)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1), shares)
def test_on_a_line_the_barycenter_has_the_mean_of_the_quantiles(seed: int, lam: list[float]) -> None:
    clients = np.random.default_rng(seed).normal(size=(3, 6)) * [[1.0], [2.0], [0.5]] + [[0.0], [3.0], [-1.0]]
    result = weights.bilevel([x[:, None] for x in clients], lam)
    center = np.array(lam) @ np.sort(clients, axis=1)
    mass = np.repeat(np.array(lam) / 6, 6)
    assert result.value == pytest.approx(squared_distance_on_a_line(clients.ravel(), mass, center), rel=1e-6, abs=1e-9)
    wanted = [squared_distance_on_a_line(x, np.full(6, 1 / 6), center) for x in clients]
    assert result.distances == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    assert 0 < result.value <= np.dot(lam, result.distances) + 1e-9, "what the paper relaxes it to"
    assert result.weights == tuple(lam)


def test_every_single_client_is_a_trivial_minimum() -> None:
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(5, 2)) + center for center in (0.0, 2.0, 5.0)]
    for lam in np.eye(3):
        assert weights.bilevel(clients, lam.tolist()).value == pytest.approx(0.0, abs=1e-12)
    assert weights.bilevel(clients, [0.2, 0.3, 0.5]).value > 0.5


@pytest.mark.parametrize("given", [[0.5, 0.6], [1.0], [1.5, -0.5], [float("nan"), 1.0]])
def test_weights_off_the_simplex_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"weights=.* must be 2 numbers of at least 0 that sum to 1, one per client"):
        weights.bilevel([np.zeros((2, 1)), np.ones((2, 1))], given)
