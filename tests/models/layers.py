"""1-Lipschitz layers by name, and the operator of each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from wafl.models.layers import LipschitzConv2d, LipschitzLinear

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "more outputs": (lambda: LipschitzLinear(4, 9), (4,)),
    "fewer outputs": (lambda: LipschitzLinear(9, 4), (9,)),
    "more channels": (lambda: LipschitzConv2d(2, 5), (2, 6, 5)),
    "fewer channels": (lambda: LipschitzConv2d(5, 2), (5, 4, 6)),
    "without padding": (lambda: LipschitzConv2d(3, 3, 2, padding=0), (3, 5, 5)),
    "more padding": (lambda: LipschitzConv2d(2, 3, 3, padding=2), (2, 4, 4)),
    "one tap": (lambda: LipschitzConv2d(3, 4, 1), (3, 3, 3)),
}


def operator(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """The matrix of a layer, column by column, without its bias."""
    units = torch.eye(torch.Size(shape).numel(), dtype=torch.float64).view(-1, *shape)
    with torch.no_grad():
        return (layer(units) - layer(torch.zeros_like(units))).flatten(1).T
