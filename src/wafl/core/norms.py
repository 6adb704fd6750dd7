"""The ground norms 1, 2 and inf: lengths, duals and names."""

from __future__ import annotations

import math

from torch import Tensor

NORMS = (1, 2, math.inf)


def check_norm(norm: float) -> None:
    if norm not in NORMS:
        raise ValueError(f"norm={norm} must be 1, 2 or inf")


def dual(norm: float) -> float:
    """The norm in which slopes are measured: ``||g||_* = max <g, v>`` over ``||v|| <= 1``."""
    return {1: math.inf, 2: 2, math.inf: 1}[norm]


def power_norm(delta: Tensor, norm: float, power: int) -> Tensor:
    """``||delta||^power`` over the last dimension."""
    if norm == 2:
        squared = delta.square().sum(-1)
        return squared if power == 2 else squared.sqrt()
    length = delta.abs().sum(-1) if norm == 1 else delta.abs().amax(-1)
    return length.square() if power == 2 else length


def norm_name(norm: float) -> str:
    return "l_inf" if norm == math.inf else f"l{norm:g}"
