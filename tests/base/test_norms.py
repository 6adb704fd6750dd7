"""What a gamma or a radius in one norm is worth in another."""

from __future__ import annotations

import math

import pytest
import torch

from wafl.base.norms import NORMS, dual, power_norm, typical_length, typical_price


@pytest.mark.parametrize("features", [64, 784, 3072])
def test_comparable_gammas_move_a_normal_gradient_equally_far(features: int) -> None:
    """The linearized inner problem, solved by its formula for each norm; the mean over gradients within 20%."""
    gradient = torch.randn(200, features, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient /= gradient.norm(dim=1, keepdim=True)
    coordinate = gradient * (gradient.abs() == gradient.abs().amax(1, keepdim=True))
    direction = {1: coordinate.sign(), 2: gradient, math.inf: gradient.sign()}  # of length 1 in its own norm
    for norm in NORMS:
        slope = torch.linalg.vector_norm(gradient, dual(norm), dim=1, keepdim=True)
        move = slope / (2.0 * typical_price(norm, features)) * direction[norm]
        assert float(move.norm(dim=1).mean()) == pytest.approx(0.5, rel=0.2)
        size = torch.linalg.vector_norm(direction[norm] / direction[norm].norm(dim=1, keepdim=True), norm, dim=1)
        assert float(size.mean()) == pytest.approx(typical_length(norm, features), rel=0.01)


def test_with_one_feature_all_norms_are_the_same() -> None:
    assert [typical_price(norm, 1) for norm in NORMS] == [typical_length(norm, 1) for norm in NORMS] == [1.0, 1.0, 1.0]


def curvature(norm: float, power: int) -> float:
    """Return the largest m for which ``f - m ||x||_2^2 / 2`` passes the midpoint test of convexity on these pairs."""
    axes = torch.eye(3, dtype=torch.float64)
    pairs = [(axes[0], axes[1]), (axes[0], 2.0 * axes[0]), (axes.sum(0), axes.sum(0) - axes[1]), (axes[0], -axes[0])]
    pairs += list(torch.randn(200, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))

    def bend(a: torch.Tensor, b: torch.Tensor) -> float:
        ends, middle = power_norm(torch.stack([a, b]), norm, power).mean(), power_norm((a + b) / 2.0, norm, power)
        return float(8.0 * (ends - middle) / (a - b).square().sum())

    return min(bend(a, b) for a, b in pairs)


@pytest.mark.parametrize("norm", NORMS)
def test_squared_l2_alone_is_strongly_convex_among_the_three_norms(norm: float) -> None:
    assert curvature(norm, 2) == pytest.approx(2.0 if norm == 2 else 0.0, abs=1e-12)
    assert curvature(norm, 1) == pytest.approx(0.0, abs=1e-12), "no norm is strongly convex along a ray"
