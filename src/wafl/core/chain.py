"""A chain of plain layers and its derivatives, for all lanes at once.

The derivatives are autograd's own and have its bits. Autograd itself takes as long to keep its records as a small
network takes to compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

ELEMENTWISE = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh)

aten: Any = torch.ops.aten


class Chain:
    """Linear layers, flattening and elementwise functions, one after another.

    ``values`` are the parameters of all lanes, ``[L, *shape]`` each, in the order of the layers.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        counts = [1 + has_bias(layer) if isinstance(layer, nn.Linear) else 0 for layer in layers]
        self._places = [sum(counts[:number]) for number in range(len(counts))]  # of each layer's first parameter

    def forward(self, values: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """What goes into each layer, and last the outputs."""
        passed = [x]
        for layer, place in zip(self._layers, self._places, strict=True):
            hidden = passed[-1]
            if isinstance(layer, nn.Linear):
                moved = torch.bmm(_rows(hidden), values[place].mT).view(*hidden.shape[:-1], -1)
                lead = (len(hidden), *(1,) * (hidden.ndim - 2), -1)
                passed.append(moved + values[place + 1].view(lead) if has_bias(layer) else moved)
            else:
                passed.append(hidden.flatten(2) if isinstance(layer, nn.Flatten) else layer(hidden))
        return passed

    def input_slope(self, values: Sequence[Tensor], passed: Sequence[Tensor], slope: Tensor) -> Tensor:
        """The gradient in the inputs, from that in the outputs."""
        for layer, place, before, after in self._backward(passed):
            if isinstance(layer, nn.Linear):
                slope = torch.bmm(_rows(slope), values[place]).view(before.shape)
            else:
                slope = _slope_before(layer, slope, before, after)
        return slope

    def write_gradient(
        self, values: Sequence[Tensor], passed: Sequence[Tensor], slope: Tensor, out: Sequence[Tensor]
    ) -> None:
        """Write the gradient in each parameter, from the gradient in the outputs."""
        for layer, place, before, after in self._backward(passed):
            if isinstance(layer, nn.Linear):
                torch.bmm(_rows(slope).mT, _rows(before), out=out[place])
                if has_bias(layer):
                    torch.sum(slope, dim=tuple(range(1, slope.ndim - 1)), out=out[place + 1])
                if place == 0:
                    return
                slope = torch.bmm(_rows(slope), values[place]).view(before.shape)
            else:
                slope = _slope_before(layer, slope, before, after)

    def _backward(self, passed: Sequence[Tensor]) -> Iterator[tuple[nn.Module, int, Tensor, Tensor]]:
        """The layers, the last one first, with what went into each and what came out."""
        return zip(reversed(self._layers), reversed(self._places), passed[-2::-1], passed[:0:-1], strict=True)


def has_bias(layer: nn.Linear) -> bool:
    return layer.bias is not None  # pyright: ignore[reportUnnecessaryComparison]


def _rows(hidden: Tensor) -> Tensor:
    return hidden.flatten(1, -2)


def _slope_before(layer: nn.Module, slope: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The slope at what went into a layer, from that at what came out."""
    match layer:
        case nn.Flatten():
            return slope.reshape(before.shape)
        case nn.Identity():
            return slope
        case nn.ReLU():
            return aten.threshold_backward(slope, after, 0)
        case nn.LeakyReLU():
            return aten.leaky_relu_backward(slope, before, layer.negative_slope, False)
        case nn.ELU():
            return aten.elu_backward(slope, layer.alpha, 1, 1, False, before)
        case nn.GELU():
            return aten.gelu_backward(slope, before, approximate=layer.approximate)
        case nn.SiLU():
            return aten.silu_backward(slope, before)
        case nn.Softplus():
            return aten.softplus_backward(slope, before, layer.beta, layer.threshold)
        case nn.Sigmoid():
            return aten.sigmoid_backward(slope, after)
        case nn.Tanh():
            return aten.tanh_backward(slope, after)
        case _:
            raise TypeError(f"{type(layer).__name__} has no derivative here: list it among ELEMENTWISE with one")
