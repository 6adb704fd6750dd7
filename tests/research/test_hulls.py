"""Hulls of frontiers, and what lies between them, against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from research.registered.hulls import ahead, common, height


def reached(points: list[tuple[float, float]], clean: float) -> float:
    """The most robust mixture of two models that has at least this clean accuracy, by trying shares."""
    shares = np.linspace(0.0, 1.0, 2001)
    pairs = itertools.combinations_with_replacement(points, 2)
    mixed = [(shares * a[0] + (1 - shares) * b[0], shares * a[1] + (1 - shares) * b[1]) for a, b in pairs]
    return max((robust[x >= clean - 1e-9].max() for x, robust in mixed if (x >= clean - 1e-9).any()))


@pytest.mark.parametrize("seed", range(4))
def test_a_hull_is_what_mixtures_of_models_reach(seed: int) -> None:
    draws = np.random.default_rng(seed)
    ours, theirs = ([tuple(point) for point in draws.uniform(0, 100, (5, 2)).tolist()] for _ in range(2))
    span = common(ours, theirs)
    assert span is not None
    where = np.linspace(*span, 401)
    for points in (ours, theirs):
        np.testing.assert_allclose(height(points, where), [reached(points, clean) for clean in where], atol=0.1)
    gap = np.array([reached(ours, clean) - reached(theirs, clean) for clean in where])
    assert ahead(ours, theirs)[0] == pytest.approx(float(np.mean((gap[1:] + gap[:-1]) / 2)), abs=0.1)
    assert ahead(ours, theirs)[2] == pytest.approx(gap[200], abs=0.1)


def test_nothing_is_said_beyond_what_both_have() -> None:
    assert ahead([(1.0, 1.0), (2.0, 0.0)], [(3.0, 1.0), (4.0, 0.0)]) == []
