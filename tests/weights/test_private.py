"""Distances between sides that send no examples: how good they are, what leaves a side, and what that reveals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from tests.oracles.transport import w2_by_assignment
from wafl import weights
from wafl.weights.transport.private import GROUP, Side, distance_bound, group_mean_clouds, random_reference


class Recording(Side):
    """A side that keeps a copy of everything that leaves it."""

    def __init__(self, points):
        super().__init__(points)
        self.sent = []

    def midpoints(self, reference):
        points, length = super().midpoints(reference)
        self.sent.append((reference.clone(), points.clone()))
        return points, length

    def group_means(self, reference):
        points = super().group_means(reference)
        self.sent.append((reference.clone(), points.clone()))
        return points


def normal_points(seed, points, features):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(points, features)))


def digits(label, points):
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x[y == label][:points] / 16.0)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 2), st.integers(1, 12), st.integers(1, 4), st.integers(0, 3))
def test_the_bound_is_never_below_the_distance(seed, points, features, reference):
    a, b = normal_points(seed, points, features), 2.0 * normal_points(seed + 1, points, features) + 1.0
    bound = distance_bound(Side(a), Side(b), reference)
    assert bound >= w2_by_assignment(a.numpy(), b.numpy()) * (1 - 1e-9)


@pytest.mark.parametrize("features", [2, 10])
def test_the_bound_is_within_5_percent_on_gaussians(features):
    a, b = normal_points(0, 150, features), 1.5 * normal_points(1, 150, features) + 1.0
    exact = w2_by_assignment(a.numpy(), b.numpy())
    assert exact * (1 - 1e-9) <= distance_bound(Side(a), Side(b), 0) <= 1.05 * exact


@pytest.mark.parametrize(("one", "other"), [(0, 1), (3, 8), (4, 9), (5, 5)])
def test_the_bound_is_within_5_percent_on_digits(one, other):
    a, b = digits(one, 170), digits(other, 170)
    a, b = a[:85], b[85:170]
    exact = w2_by_assignment(a.numpy(), b.numpy())
    assert exact * (1 - 1e-9) <= distance_bound(Side(a), Side(b), 0) <= 1.05 * exact


def test_no_side_sends_an_example():
    sides = [Recording(digits(label, 60)) for label in (3, 8)]
    distance_bound(*sides, seed=0)
    group_mean_clouds(sides, seed=0)
    for side, label in zip(sides, (3, 8), strict=True):
        raw = digits(label, 60)
        assert len(side.sent) > 5
        for _, points in side.sent:
            assert float(torch.cdist(points, raw).min()) > 1e-3


def test_the_coordinator_needs_only_the_messages():
    """A side whose points are elsewhere, as over a network, gives the same bound."""

    class Remote:
        def __init__(self, points):
            side = Side(points)
            self.shape, self.midpoints, self.group_means = side.shape, side.midpoints, side.group_means

    a, b = normal_points(0, 20, 3), normal_points(1, 20, 3)
    assert distance_bound(Remote(a), Remote(b), 0) == distance_bound(Side(a), Side(b), 0)
    for remote, local in zip(*(group_mean_clouds([kind(a), kind(b)], 0) for kind in (Remote, Side)), strict=True):
        assert torch.equal(remote.x, local.x)


def test_a_midpoint_reveals_its_example_as_documented():
    """``2 m - r`` is the example: midpoints hide nothing from whoever knows the reference."""
    raw = digits(3, 60)
    sides = Recording(raw), Recording(digits(8, 60))
    distance_bound(*sides, seed=0)
    reference, points = sides[0].sent[0]
    assert torch.equal(reference, random_reference((60, 64), 0))
    distances = torch.cdist(2.0 * points - reference, raw)
    assert float(distances.min(0).values.max()) < 1e-6  # every example


def test_group_means_are_means_of_about_ten_examples():
    raw = digits(3, 120)
    side = Recording(raw)
    (means,) = group_mean_clouds([side], seed=0)
    assert len(means) == 120 // GROUP
    torch.testing.assert_close(means.x.mean(0), raw.mean(0))
    # 10 of the 120 points go to each of 12: every mean is of 10 examples, and lies nearer the center than they do.
    assert float((means.x - raw.mean(0)).norm(dim=1).max()) < float((raw - raw.mean(0)).norm(dim=1).mean())


def test_private_nearest_finds_the_exact_source_with_close_bounds():
    x, y = load_digits(return_X_y=True)
    sources = [x[y == label][:80] for label in (0, 1, 7)]
    target = x[y == 1][80:170]
    found, exact = weights.nearest(sources, target, private=True), weights.nearest(sources, target, sample=80)
    assert found.weights == exact.weights == (0.0, 1.0, 0.0)
    assert (found.kind, found.gap) == ("bound", found.value)
    for bound, distance in zip(found.distances, exact.distances, strict=True):
        assert 0.97 * distance <= bound <= 1.1 * distance  # both draw the same 80 of the target's 90 points
    assert all(np.isnan(found.standard_errors))


def test_private_cover_bounds_the_smallest_ball():
    generator = np.random.default_rng(0)
    clients = [generator.normal(size=(n, 2)) + 3.0 * i for i, n in enumerate((40, 30, 35))]
    found = weights.cover(clients, private=True)
    assert found.kind == "bound"
    assert found.weights[1] > 0.9
    equal = weights.cover(clients, sample=30)
    assert equal.value <= found.value <= 1.1 * equal.value
    assert found.value == max(found.distances)


def test_private_mixture_is_labeled_an_approximation_and_is_close():
    generator = np.random.default_rng(0)
    centers = 8.0 * np.eye(3)
    sources = [generator.normal(size=(200, 3)) + center for center in centers]
    target = np.concatenate([generator.normal(size=(n, 3)) + centers[i] for i, n in enumerate((140, 60))])
    found = weights.mixture(sources, target, private=True)
    assert found.kind == "approximation"
    assert found.weights == pytest.approx([0.7, 0.3, 0.0], abs=0.1)
    assert found == weights.mixture(sources, target, private=True)
    assert found.weights != weights.mixture(sources, target, private=True, seed=1).weights
