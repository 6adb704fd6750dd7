"""What decides how a GPU computes: the settings of torch within a block, and the same ones after it."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from wafl.tasks.gpu.precision import computing

CUDA = torch.device("cuda")  # its settings can be read without a GPU


def settings() -> tuple[bool, ...]:
    cudnn: Any = torch.backends.cudnn
    return cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_block_sets_digits_and_algorithms_and_restores_them(precision: str, deterministic: bool) -> None:
    before = settings()
    with computing(precision, CUDA, deterministic=deterministic):
        assert settings() == (precision == "tf32", precision == "tf32", deterministic, not deterministic)
    assert settings() == before


def test_the_same_bits_each_time_are_the_default() -> None:
    with computing("float32", CUDA):
        assert settings() == (False, False, True, False)
    assert os.environ["TORCH_CUDNN_USE_HEURISTIC_MODE_B"] == "1"
