"""Clients drawn from a population, and a linear model that none of them trained."""

import numpy as np

import wafl
from tests.oracles import objective as oracles

MODEL = oracles.linear_model(np.array([[-4.0, 0.5], [4.0, 0.0]]), np.array([2.0, -2.0]))


def world(num_clients, size, seed=0, bounds=(0.0, 1.0)):
    """Clients around centers of their own, with labels that follow the first coordinate and their own noise."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(num_clients):
        x = np.clip(rng.uniform(0.3, 0.7, 2) + 0.15 * rng.normal(size=(size, 2)), 0.0, 1.0)
        y = (x[:, 0] + rng.uniform(0.0, 0.3) * rng.normal(size=size) > 0.5).astype(np.int64)
        pairs.append((x, y))
    return wafl.Federation.from_arrays(pairs, bounds=bounds, num_classes=2, test_fraction=0.25)
