"""What differential privacy spends, against integrals and a peer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import trapezoid

from wafl.train.privacy.accountant import delta_of, epsilon_of, noise_for


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 8.0])
def test_delta_is_how_far_the_densities_lie_apart(noise: float, epsilon: float) -> None:
    """The integral of ``max(p - exp(epsilon) q, 0)``, p and q two Gaussians one clipped update apart."""
    shift = 1 / noise
    x = np.linspace(-14.0, 14.0 + shift, 200_001)
    p, q = (np.exp(-np.square(x - mean) / 2) / math.sqrt(2 * math.pi) for mean in (shift, 0.0))
    expected = trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), x)
    assert delta_of(epsilon, noise, 1) == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_two_releases_are_one_in_two_dimensions() -> None:
    """The same integral over the plane, where each release is a coordinate."""
    noise, epsilon = 1.5, 1.2
    axis = np.linspace(-8.0, 9.0, 1501)
    one, other = np.meshgrid(axis, axis)
    shift = 1 / noise
    p = np.exp(-(np.square(one - shift) + np.square(other - shift)) / 2) / (2 * math.pi)
    q = np.exp(-(np.square(one) + np.square(other)) / 2) / (2 * math.pi)
    expected = np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * (axis[1] - axis[0]) ** 2
    assert delta_of(epsilon, noise, 2) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("noise", "releases", "delta", "expected"),
    [
        (1.0, 1, 1e-5, 4.37717810002493),
        (4.0, 20, 1e-5, 4.983306407376121),
        (2.0, 15, 1e-4, 8.522618644011324),
        (30.0, 100, 1e-6, 1.4479880288830957),
    ],
)
def test_epsilon_is_that_of_a_peer(noise: float, releases: int, delta: float, expected: float) -> None:
    """What the PLDAccountant of dp-accounting 0.6.0 gives, an upper bound by discretization."""
    assert epsilon_of(delta, noise, releases) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("epsilon", "delta", "rounds"), [(1.0, 1e-5, 20), (8.0, 1e-6, 1), (0.01, 1e-9, 1000)])
def test_the_noise_for_an_epsilon_spends_that_epsilon(epsilon: float, delta: float, rounds: int) -> None:
    noise = noise_for(epsilon, delta, rounds)
    assert epsilon_of(delta, noise, rounds) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_of(delta, 1.01 * noise, rounds) < epsilon < epsilon_of(delta, 0.99 * noise, rounds)
    assert epsilon_of(delta, noise, 0) == 0.0
