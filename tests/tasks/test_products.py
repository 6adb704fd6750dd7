from __future__ import annotations

import pytest
import torch

from wafl.tasks.gpu.precision import computing
from wafl.tasks.products import product

CPU = torch.device("cpu")


def matrices(rows: int, columns: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of three lanes; the lanes of the first matrix are part of a longer vector, as the weights of a model are."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(3, rows * depth + rows, generator=generator)
    return flat[:, : rows * depth].view(3, rows, depth), torch.randn(3, columns, depth, generator=generator)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(10, 64, 64), (64, 10, 784), (1, 1, 1), (10, 0, 4)])
def test_it_is_the_product_in_rows(rows: int, columns: int, depth: int) -> None:
    a, b = matrices(rows, columns, depth)
    result = product(a, b)
    assert result.is_contiguous()
    torch.testing.assert_close(result.double(), torch.einsum("lmk,lnk->lmn", a.double(), b.double()), rtol=0, atol=1e-4)


def test_what_is_added_may_be_one_number_per_row_or_a_whole_matrix() -> None:
    a, b = matrices(10, 64, 64)
    for plus in (torch.randn(3, 10, 1), torch.randn(3, 10, 64), torch.randn(3, 64, 10).mT):
        result = product(a, b, plus)
        assert result.is_contiguous()
        torch.testing.assert_close(result, product(a, b) + plus)


def test_it_has_a_derivative() -> None:
    a, b = matrices(10, 64, 64)
    product(a.requires_grad_(), b).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(1, keepdim=True).expand_as(a))


def test_it_keeps_to_a_reduced_precision() -> None:
    a, b = matrices(10, 64, 64)
    with computing("bfloat16", CPU), torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(a, b).dtype == torch.bfloat16
