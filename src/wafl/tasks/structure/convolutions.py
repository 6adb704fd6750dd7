"""How much work the convolutions of a model are, which decides whether a CPU computes lanes together.

A small convolution takes longer to call than to compute, so all lanes go into one call. A large one keeps the processor
busy by itself, and the convolution of many lanes, whose filters differ, is slower than one convolution after another.
"""

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, nn

BUSY = 500_000
"""With more products per example than this, a lane keeps a processor busy (``benchmarks/convolutions.py``)."""


def convolution_products(module: nn.Module, run: Callable[[], object]) -> int:
    """How many products of numbers convolutions take while ``run`` calls the module."""
    found: list[int] = []

    def count(layer: nn.Module, args: Any, output: Tensor) -> None:
        found.append(output.numel() * cast(nn.Conv2d, layer).weight[0].numel())

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    if not layers:
        return 0
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return sum(found)
