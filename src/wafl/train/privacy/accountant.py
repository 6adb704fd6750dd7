"""Compute the exact privacy budget that the Gaussian mechanism spends.

Dong, Roth and Su, "Gaussian differential privacy" (JRSS B 2022), and Balle and Wang, "Improving the Gaussian mechanism
for differential privacy" (ICML 2018): k releases with the noise multiplier z are as private as one with ``mu = sqrt(k)
/ z``, and ``delta(epsilon) = Phi(mu / 2 - epsilon / mu) - exp(epsilon) Phi(-mu / 2 - epsilon / mu)``.
"""

import math
from collections.abc import Callable

import torch


def delta_of(epsilon: float, noise_multiplier: float, releases: int) -> float:
    """Return the smallest delta for which ``releases`` releases are (epsilon, delta)-private."""
    mu = math.sqrt(releases) / noise_multiplier
    first = _log_phi(mu / 2 - epsilon / mu)
    second = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    return -math.exp(first) * math.expm1(min(0.0, second - first))


def epsilon_of(delta: float, noise_multiplier: float, releases: int) -> float:
    """Return the smallest epsilon for which ``releases`` releases are (epsilon, delta)-private; 0 for no release."""
    if releases == 0 or delta_of(0.0, noise_multiplier, releases) <= delta:
        return 0.0
    return _least(lambda epsilon: delta_of(epsilon, noise_multiplier, releases) <= delta)


def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the smallest noise multiplier for which ``releases`` releases are (epsilon, delta)-private."""
    return _least(lambda noise: delta_of(epsilon, noise, releases) <= delta)


def _log_phi(x: float) -> float:
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))


def _least(enough: Callable[[float], bool]) -> float:
    """Return the smallest sufficient positive number, to a part in 10^12; every larger number must be sufficient."""
    high = 1.0
    while not enough(high):
        high *= 2.0
    low = high / 2.0
    while low > 1e-300 and enough(low):
        low, high = low / 2.0, low
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
