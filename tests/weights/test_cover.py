"""The smallest ball around a mixture that holds every client, and the paper's barycenter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles.transport import cost_matrix, least_largest_distance
from wafl import weights

clients_on_a_grid = st.lists(
    st.builds(
        lambda seed, points, center: np.random.default_rng(seed).integers(-2, 3, (points, 2)) + center,
        st.integers(0, 2**32 - 1),
        st.integers(1, 5),
        st.sampled_from([0.0, 0.5, 3.0]),
    ),
    min_size=1,
    max_size=5,
)


def costs(clients, targets=None):
    return [[cost_matrix(client, target) for client in clients] for target in targets or clients]


def largest_distance(clients, at):
    return least_largest_distance(costs(clients), at)


@settings(max_examples=10)
@given(clients_on_a_grid)
def test_cover_equals_the_full_linear_program(clients):
    result = weights.cover(clients)
    assert result.value == pytest.approx(least_largest_distance(costs(clients)), rel=1e-6, abs=1e-6)
    assert result.gap <= 1e-6
    assert largest_distance(clients, result.weights) == pytest.approx(result.value, rel=1e-6, abs=1e-6)
    assert result.radius == pytest.approx(result.value**0.5)
    assert max(result.distances) == result.value
    for client, distance in zip(clients, result.distances, strict=True):
        wanted = least_largest_distance([[cost_matrix(each, client) for each in clients]], result.weights)
        assert wanted - 1e-6 <= distance <= wanted + 1e-6


@settings(max_examples=20)
@given(clients_on_a_grid, st.integers(0, 2**32 - 1))
def test_barycenter_always_ends_at_a_single_client(clients, seed):
    """The trivial minimum that the paper's program has at every client."""
    result = weights.barycenter(clients, seed=seed)
    assert sorted(result.weights) == [0.0] * (len(clients) - 1) + [1.0]
    assert (result.value, result.gap, result.kind) == (0.0, 0.0, "exact")
    chosen = clients[result.weights.index(1.0)]
    wanted = [least_largest_distance([[cost_matrix(client, chosen)]]) for client in clients]
    np.testing.assert_allclose(result.distances, wanted, atol=1e-6)
    assert result == weights.barycenter(clients, seed=seed)


def test_barycenter_returns_the_client_nearest_to_the_barycenter_of_all():
    """Point masses: the barycenter of all is their mean, 3, so the client at 4 is taken, not the covering one at 5."""
    clients = [np.full((3, 1), center) for center in (0.0, 1.0, 0.0, 4.0, 10.0)]
    assert weights.barycenter(clients).weights == (0.0, 0.0, 0.0, 1.0, 0.0)
    assert weights.barycenter(clients).distances == (16.0, 9.0, 16.0, 0.0, 36.0)
