"""Each inequality behind a bound on its own, where a wrong factor shows: small models, against a grid over all moves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.oracles import phi as oracles
from tests.oracles import theory
from wafl.tasks.losses import CrossEntropy
from wafl.theory.phi.linear_model import LinearPhi, distance_to_error

WEIGHT = np.array([[1.0, 0.5], [-0.4, 1.2], [0.3, -0.9]])
OUTPUTS = np.array([[1.2, -1.3, 1.0], [0.8, 1.2, -0.9]])
LABELS = np.array([0, 1])


def tensors(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(array) for array in arrays)


def truth(gamma: float, norm: float, weight: np.ndarray = WEIGHT) -> np.ndarray:
    rows = zip(OUTPUTS, LABELS, strict=True)
    return np.array([oracles.brute_force_phi(weight, row, label, gamma, norm) for row, label in rows])


def curvature(norm: float, weight: np.ndarray = WEIGHT) -> float:
    """``L_zz = max_jk ||w_j - w_k||_*^2 / 4`` of cross-entropy."""
    return theory.farthest_rows(weight, norm) ** 2 / 4.0


# linear_model.py


def test_of_two_maxima_the_one_far_away_is_found() -> None:
    """``log(1 + exp(2 t - 3.25)) - 0.3 t^2`` has two: the ascent from t = 0 ends at the lower one.

    gamma is between a half of the concavity limit, which is ``2^2 / 8``, and that limit.
    """
    t = np.linspace(0.0, 5.0, 50_001)
    value = np.log1p(np.exp(2.0 * t - 3.25)) - 0.3 * t**2
    peaks = np.flatnonzero((value[1:-1] > value[:-2]) & (value[1:-1] > value[2:]))
    assert len(peaks) == 2
    assert value[peaks[0] + 1] < value.max() - 0.05
    model = LinearPhi(torch.tensor([[0.0], [2.0]]).double(), CrossEntropy(), 2)
    outputs, label = torch.tensor([[3.25, 0.0]]).double(), torch.tensor([0])
    sides = model.bounds(outputs, label, 0.3, 1e-4)
    assert value.max() - 1e-8 <= float(sides.upper) <= value.max() + 1e-4
    assert float(model.reached(outputs, label, 0.3, 1e-6)[0]) == pytest.approx(value.max(), abs=1e-6)


def test_the_bound_by_the_curvature_is_above_phi() -> None:
    """``loss + ||g||_1^2 / (4 gamma - 2 L_zz)``: of rows that the Gram matrix cannot tell apart, no ellipsoid is known."""
    weight = WEIGHT[[0, 0, 2]] + 1e-5 * np.eye(3)[:, :2]
    gamma = 1.5 * curvature(math.inf, weight)
    model = LinearPhi(torch.from_numpy(weight), CrossEntropy(), math.inf)
    upper = model.bounds(*tensors(OUTPUTS, LABELS), gamma, tolerance=0.02).upper
    assert (upper.numpy() >= truth(gamma, math.inf, weight) - 1e-9).all()


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_slack_takes_away_from_every_lead(norm: float) -> None:
    found = distance_to_error(*tensors(WEIGHT, OUTPUTS, LABELS), norm, slack=0.1)
    less = OUTPUTS - 0.1 * np.eye(3)[LABELS]
    wanted = [oracles.distance_to_error(WEIGHT, row, label, norm) for row, label in zip(less, LABELS, strict=True)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)
