"""Appendix A: moves of single examples against the ball, whose worst case is never better than theirs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.oracles.transport import w2_by_assignment
from wafl.theory import inside_ball


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("power", [1, 2])
def test_moves_of_at_most_epsilon_are_inside_the_ball_of_radius_epsilon(norm: float, power: int) -> None:
    rng = np.random.default_rng(0)
    for epsilon in (1e-3, 0.3, 40.0):
        moves = rng.normal(size=(50, 2, 3))
        length = np.linalg.norm(moves.reshape(50, -1), norm, axis=1)
        moves *= epsilon / length[:, None, None]
        assert inside_ball(moves, radius=epsilon, norm=norm, power=power)
        assert not inside_ball(moves, radius=0.999 * epsilon, norm=norm, power=power)
        assert inside_ball(moves.astype(np.float32), radius=epsilon, norm=norm, power=power), "up to rounding"
        moves[1:] = 0.0
        weights = [0.25, *[1.0] * 48, 2.0 - 0.25 + 1.0]
        share = 0.25 / sum(weights)
        edge = epsilon * share ** (1 / power)
        assert inside_ball(moves, radius=1.001 * edge, norm=norm, power=power, weights=weights)
        assert not inside_ball(moves, radius=0.999 * edge, norm=norm, power=power, weights=weights)


def test_moves_inside_the_ball_are_within_the_radius_in_w_2() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        x, moves = rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) * rng.random((30, 1)) * 3
        radius = math.sqrt(w2_by_assignment(x, x + moves))
        assert not inside_ball(moves, radius=0.999 * radius)
        assert inside_ball(moves, radius=math.sqrt((moves**2).sum(1).mean()))


@pytest.mark.parametrize(
    ("moves", "options", "message"),
    [
        ([0.1, 0.2], {}, r"perturbations of shape \(2,\) must be finite numbers \[N, ...\]"),
        ([[math.nan]], {}, "must be finite numbers"),
        ([[0.1]], {"radius": -1.0}, "radius=-1.0 must be positive"),
        ([[0.1]], {"power": 3}, "power=3 must be 1 or 2"),
        ([[0.1]], {"norm": 3}, "norm=3"),
        ([[0.1]], {"weights": [1.0, 2.0]}, "weights must be 1 numbers of at least 0"),
        ([[0.1]], {"weights": [0.0]}, "not all 0"),
    ],
)
def test_what_is_no_perturbation_is_refused(moves: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inside_ball(moves, **{"radius": 1.0, **options})
