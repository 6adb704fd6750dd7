"""Compute with the ground norms 1, 2 and inf: lengths, duals and names."""

import math

import torch
from torch import Tensor

from wafl.base.options import Norm

NORMS = (1, 2, math.inf)


def check_norm(norm: float) -> None:
    """Raise ValueError unless the norm is 1, 2 or infinity."""
    Norm.check("norm", norm)


def dual(norm: float) -> float:
    """Return the norm for slopes: ``||g||_* = max <g, v>`` over ``||v|| <= 1``."""
    return {1: math.inf, 2: 2, math.inf: 1}[norm]


def power_norm(delta: Tensor, norm: float, power: int) -> Tensor:
    """Return ``||delta||^power`` over the last dimension."""
    if norm == 2:
        squared = delta.square().sum(-1)
        return squared if power == 2 else squared.sqrt()
    length = delta.abs().sum(-1) if norm == 1 else delta.abs().amax(-1)
    return length.square() if power == 2 else length


def steepest(slope: Tensor, norm: float) -> Tensor:
    """Return the v with ``||v|| <= 1`` that maximizes ``<slope, v>``; the maximum is ``||slope||_*``."""
    if norm == 2:
        return slope / slope.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(slope.dtype).tiny)
    if norm == 1:
        index = slope.abs().argmax(-1, keepdim=True)
        return torch.zeros_like(slope).scatter(-1, index, slope.gather(-1, index).sign())
    return slope.sign()


def typical_length(norm: float, features: int) -> float:
    """Return the norm of a move of Euclidean length 1 toward a higher loss; for inf, along all coordinates alike."""
    return 1.0 / math.sqrt(features) if norm == math.inf else 1.0


def typical_price(norm: float, features: int) -> float:
    """Return the gamma, relative to the gamma of norm 2, whose move has the same Euclidean length.

    The move has the norm ``||g||_* / (2 gamma)``; the gradient g is assumed to have independent normal entries.

    >>> typical_price(2, 784), round(typical_price(math.inf, 784)), round(typical_price(1, 784), 2)
    (1.0, 626, 0.13)
    """
    slope = {
        1: max(math.sqrt(2.0 * math.log(features)), 1.0) / math.sqrt(features),
        2: 1.0,
        math.inf: max(math.sqrt(2.0 * features / math.pi), 1.0),
    }
    return slope[norm] / typical_length(norm, features)


def norm_name(norm: float) -> str:
    """Return the name of a norm, such as ``l2`` or ``l_inf``."""
    return "l_inf" if norm == math.inf else f"l{norm:g}"
