"""A chain of plain layers and its derivatives, for all lanes at once: autograd's bits, without keeping its records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

ELEMENTWISE = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh)

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Passed:
    """What a forward pass leaves behind: the input of each layer, and last the outputs."""

    hidden: list[Tensor]

    @property
    def outputs(self) -> Tensor:
        return self.hidden[-1]


class Chain:
    """Linear layers, flattening and elementwise functions; ``values`` are all lanes' parameters, in order."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = layers
        counts = [1 + has_bias(layer) if isinstance(layer, nn.Linear) else 0 for layer in layers]
        starts = [sum(counts[:number]) for number in range(len(counts))]
        self._params = [slice(start, start + count) for start, count in zip(starts, counts, strict=True)]
        self._first = next(number for number, count in enumerate(counts) if count)

    def forward(self, values: Sequence[Tensor], x: Tensor) -> Passed:
        passed = Passed([x])
        for layer, params in zip(self._layers, self._params, strict=True):
            hidden = passed.outputs
            if isinstance(layer, nn.Linear):
                weight, *bias = values[params]
                moved = torch.bmm(_rows(hidden), weight.mT).view(*hidden.shape[:-1], -1)
                lead = (len(hidden), *(1,) * (hidden.ndim - 2), -1)
                hidden = moved + bias[0].view(lead) if bias else moved
            else:
                hidden = hidden.flatten(2) if isinstance(layer, nn.Flatten) else layer(hidden)
            passed.hidden.append(hidden)
        return passed

    def input_slope(self, values: Sequence[Tensor], passed: Passed, slope: Tensor) -> Tensor:
        """The gradient in the inputs, from that in the outputs."""
        for number in reversed(range(len(self._layers))):
            slope = self._slope_before(number, values, passed, slope)
        return slope

    def write_gradient(self, values: Sequence[Tensor], passed: Passed, slope: Tensor, out: Sequence[Tensor]) -> None:
        """Write the gradient in each parameter, from the gradient in the outputs."""
        for number in reversed(range(self._first, len(self._layers))):
            layer, params, before = self._layers[number], self._params[number], passed.hidden[number]
            if isinstance(layer, nn.Linear):
                _write_slopes(slope, before, out[params])
            if number > self._first:
                slope = self._slope_before(number, values, passed, slope)

    def _slope_before(self, number: int, values: Sequence[Tensor], passed: Passed, slope: Tensor) -> Tensor:
        """The slope at what went into a layer, from that at what came out."""
        layer, params, before = self._layers[number], self._params[number], passed.hidden[number]
        if isinstance(layer, nn.Linear):
            return torch.bmm(_rows(slope), values[params.start]).view(before.shape)
        return _elementwise(layer, slope, before, passed.hidden[number + 1])


def has_bias(layer: nn.Linear) -> bool:
    return layer.bias is not None  # pyright: ignore[reportUnnecessaryComparison]


def _write_slopes(slope: Tensor, before: Tensor, out: Sequence[Tensor]) -> None:
    """Write the slopes at the weights and the bias of a linear layer."""
    weight, *bias = out
    torch.bmm(_rows(slope).mT, _rows(before), out=weight)
    if bias:
        torch.sum(slope, dim=tuple(range(1, slope.ndim - 1)), out=bias[0])


def _rows(hidden: Tensor) -> Tensor:
    return hidden.flatten(1, -2)


def _elementwise(layer: nn.Module, slope: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The slope before a layer without parameters, which flattens or computes each number by itself."""
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
