"""The condition on gamma: curvatures against autograd, and the table of what holds in how many seeds."""

from __future__ import annotations

import torch

from research.reproduction.condition import curvature_at, of_condition
from wafl.tasks.losses import CrossEntropy


def test_the_curvature_at_an_example_is_that_of_autograds_hessian_and_below_l_zz() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, x = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, 6), (4,), (9, 6))
    )

    def loss(example: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(weight @ example + bias, torch.tensor(1))

    hessians = [torch.autograd.functional.hessian(loss, example) for example in x]
    expected = torch.stack([torch.linalg.eigvalsh(each)[-1] for each in hessians])
    result = curvature_at(x, weight, bias)
    torch.testing.assert_close(result, expected)
    assert float(result.max()) < float(CrossEntropy().curvature(weight[None])[0])


def test_the_table_counts_the_seeds_in_which_gamma_is_above_the_curvature() -> None:
    def rows(label: str, limits: list[float], **about: float) -> list[dict[str, object]]:
        return [
            {"label": label, "seed": seed, "test": "l_inf", "attacked": share, "accuracy": 90.0 - 50.0 * share,
             "L_zz": limit, "L_zz_at_examples": limit / 2.0, **about}
            for seed, limit in enumerate(limits) for share in (0.0, 0.4)
        ]  # fmt: skip

    text = of_condition([*rows("wafl-gamma=0.05", [0.09, 0.11, 0.04], gamma=0.05), *rows("FedAvg", [0.3, 0.3, 0.3])])
    assert "| 0.05 | 90.0 ± 0.0 | 70.0 ± 0.0 | 0.080 ± 0.090 | 0.040 ± 0.045 | 1 of 3 | 2 of 3 |" in text
    assert "| none (FedAvg) | 90.0 ± 0.0 | 70.0 ± 0.0 | 0.300 ± 0.000 | 0.150 ± 0.000 |  |  |" in text
