"""The checker's bound on the largest singular value, against 50 digits."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from wafl.promises.layers import largest_singular_value

mp: Any = mpmath
DIGITS = 50


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def hilbert(n: int) -> Tensor:
    at = torch.arange(n, dtype=torch.float64)
    return 1.0 / (at[:, None] + at + 1.0)


def rotation(angle: float) -> Tensor:
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)


MATRICES = {
    "square": random(6, 6),
    "wide": random(3, 9),
    "tall": random(9, 3),
    "one row": random(1, 7),
    "one column": random(7, 1),
    "one number": random(1, 1),
    "rank 1": random(5, 1) @ random(1, 6),
    "a row of zeros": random(4, 4) * torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)[:, None],
    "graded": random(6, 6) * torch.logspace(0, -90, 6, dtype=torch.float64)[:, None],
    "graded both ways": torch.logspace(60, -90, 6, dtype=torch.float64)[:, None] * random(6, 6),
    "equal singular values": rotation(0.3),
    "nearly equal singular values": rotation(0.3) * (1.0 + 1e-15 * torch.arange(2.0, dtype=torch.float64)),
    "Hilbert": hilbert(8),
    "all equal": torch.full((5, 7), 1.0 / 3.0, dtype=torch.float64),
    "huge": 1e99 * random(4, 5),
    "tiny": 1e-98 * random(4, 5),
    "huge ratio": torch.tensor([[1e100, 1e-100], [-1e-100, 1e100]], dtype=torch.float64),
}


def exact(matrix: Tensor) -> Any:
    return max(mp.svd_r(mp.matrix(matrix.tolist()), compute_uv=False))


@pytest.mark.parametrize("kind", MATRICES)
def test_the_bound_is_at_least_the_largest_singular_value_and_close(kind: str) -> None:
    with mp.workdps(DIGITS):
        largest, bound = exact(MATRICES[kind]), mp.mpf(largest_singular_value(MATRICES[kind]))
        assert largest <= bound <= largest * (1 + mp.mpf("1e-9"))


def test_a_matrix_of_zeros_stretches_nothing_and_numbers_out_of_range_prove_nothing() -> None:
    assert largest_singular_value(torch.zeros(3, 4, dtype=torch.float64)) == 0.0
    for value in (math.nan, math.inf, 1e200, 1e-200):
        assert largest_singular_value(torch.full((2, 2), value, dtype=torch.float64)) == math.inf


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("kind", ["square", "wide", "tall", "Hilbert"])
def test_the_bound_holds_even_if_the_decomposition_is_wrong(
    kind: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of U, S and V is off by a few percent; the bound grows with the error, and is never too small."""
    plain = torch.linalg.svd

    def wrong(matrix: Tensor, full_matrices: bool) -> list[Tensor]:
        factors = list(plain(matrix, full_matrices=full_matrices))
        factors[part] = factors[part] * 0.9 + 0.01
        return factors

    with mp.workdps(DIGITS):
        largest = exact(MATRICES[kind])
        monkeypatch.setattr(torch.linalg, "svd", wrong)
        assert largest <= largest_singular_value(MATRICES[kind])


@pytest.mark.parametrize("long", [0, 2])
def test_vectors_that_are_too_long_count_with_their_length(long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """U or V is twice as long and S half as large, so the product is still the matrix."""
    plain = torch.linalg.svd

    def wrong(matrix: Tensor, full_matrices: bool) -> list[Tensor]:
        factors = list(plain(matrix, full_matrices=full_matrices))
        factors[long], factors[1] = 2.0 * factors[long], factors[1] / 2.0
        return factors

    with mp.workdps(DIGITS):
        largest = exact(MATRICES["square"])
        monkeypatch.setattr(torch.linalg, "svd", wrong)
        assert largest <= largest_singular_value(MATRICES["square"])
