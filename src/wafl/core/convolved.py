"""Convolutions and pooling of one lane, and their derivatives.

Shapes: ``[1, B, C, H, W]``, and weights ``[1, O, C, h, w]``, as in a chain of layers whose lanes come one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MANY_CHANNELS = 16
"""From so many input channels on, a CPU takes half as long for a slope that is written as a convolution."""

aten: Any = torch.ops.aten


def convolved(layer: nn.Conv2d, x: Tensor, values: Sequence[Tensor]) -> Tensor:
    weight, bias = values[0][0], values[1][0] if len(values) > 1 else None
    return functional.conv2d(x[0], weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)[None]


def input_slope(layer: nn.Conv2d, slope: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The slope at what went into a convolution, from that at what came out."""
    if _is_convolution_backwards(layer, slope):
        padding = [size - 1 - pad for size, pad in zip(layer.kernel_size, _pair(layer.padding), strict=True)]
        return functional.conv2d(slope[0], weight[0].flip(2, 3).transpose(0, 1).contiguous(), padding=padding)[None]
    return _slopes(layer, slope, x, weight, [True, False, False])[0][None]


def write_slopes(
    layer: nn.Conv2d, slope: Tensor, x: Tensor, weight: Tensor, out: Sequence[Tensor], *, further: bool
) -> Tensor:
    """Write the slopes at the weights and the bias, and return the slope at what went in, if it goes ``further``."""
    apart = further and _is_convolution_backwards(layer, slope)
    before, *found = _slopes(layer, slope, x, weight, [further and not apart, True, len(out) > 1])
    for place, value in zip(out, found, strict=False):
        place[0].copy_(value)
    if apart:
        return input_slope(layer, slope, x, weight)
    return before[None] if further else slope


def pooled(layer: nn.MaxPool2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest values, and where they were."""
    found, peaks = aten.max_pool2d_with_indices(x[0], *_pooling(layer))
    return found[None], peaks


def pooling_slope(layer: nn.MaxPool2d, slope: Tensor, x: Tensor, peaks: Tensor) -> Tensor:
    return aten.max_pool2d_with_indices_backward(slope[0], x[0], *_pooling(layer), peaks)[None]


def _slopes(
    layer: nn.Conv2d, slope: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Those wanted of the slopes at what went in, at the weights and at the bias."""
    shape = (_pair(value) for value in (layer.stride, layer.padding, layer.dilation))
    bias, transposed = [layer.out_channels], (False, [0, 0])
    return aten.convolution_backward(slope[0], x[0], weight[0], bias, *shape, *transposed, layer.groups, wanted)


def _is_convolution_backwards(layer: nn.Conv2d, slope: Tensor) -> bool:
    """Whether the slope at what went in is a convolution with the mirrored filters, and faster as such."""
    plain = layer.groups == 1 and layer.stride == (1, 1) and layer.dilation == (1, 1)
    fits = all(pad < size for size, pad in zip(layer.kernel_size, _pair(layer.padding), strict=True))
    return plain and fits and layer.in_channels >= MANY_CHANNELS and slope.dtype == torch.float32


def _pooling(layer: nn.MaxPool2d) -> tuple[list[int], list[int], list[int], list[int], bool]:
    size, stride, padding, dilation = map(_pair, (layer.kernel_size, layer.stride, layer.padding, layer.dilation))
    return size, stride, padding, dilation, layer.ceil_mode


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
