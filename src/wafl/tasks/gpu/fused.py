"""Networks of convolutions on a GPU in bfloat16: outputs, and gradients in the images, of all lanes at once.

Each convolution, with the ReLU and the pooling that follow it, is one kernel forward and one back. This is what an
ascent repeats; gradients in the parameters, once per local step, are left to the layers themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wafl.tasks.gpu.kernels import kernels
from wafl.tasks.gpu.pooling import pools
from wafl.tasks.losses import OutputLoss, value_and_slope
from wafl.tasks.structure.chain import Chain, Passed

CHANNELS = (16, 32, 64, 128)
"""What a product of matrices on tensor cores takes. The first filters see fewer, and have up to 16 numbers in a row."""


@dataclass(frozen=True)
class Fused:
    """Convolutions that pool, and the layers behind them; ``values`` are all lanes' parameters, as layers read them."""

    stages: int
    behind: Chain
    kernel: Any

    def takes(self, x: Tensor) -> bool:
        """Whether these are images ``[L, B, I, H, W]`` of which every pooling finds even sides."""
        whole = 1 << self.stages
        return x.dtype == torch.float32 and x.ndim == 5 and x.shape[3] % whole == x.shape[4] % whole == 0

    def outputs(self, values: Sequence[Tensor], x: Tensor) -> Tensor:
        return self._forward(_of_colors(values), x)[2].outputs.float()

    def input_gradient(self, values: Sequence[Tensor], x: Tensor, y: Tensor, loss: OutputLoss) -> tuple[Tensor, Tensor]:
        """Losses ``[L, B]`` and their gradients in the images."""
        values = _of_colors(values)
        images, choices, passed = self._forward(values, x)
        losses, slope = value_and_slope(loss, passed.outputs.float(), y, x.new_ones(x.shape[:2]))
        slope = self.behind.input_slope(values[2 * self.stages :], passed, slope.to(passed.outputs.dtype))
        for stage in reversed(range(self.stages)):
            slope = self.kernel.backward(slope, choices[stage], values[2 * stage], images[stage])
        return losses, slope[:, :, : x.shape[2]]

    def _forward(self, values: Sequence[Tensor], x: Tensor) -> tuple[list[Tensor], list[Tensor], Passed]:
        """What goes into each convolution, which pixels it took, and what the layers behind computed."""
        gray = x.shape[2] == 1
        images, choices = [torch.cat([x, torch.zeros_like(x)], 2) if gray else x.contiguous()], list[Tensor]()
        for stage in range(self.stages):
            pooled, choice = self.kernel.forward(images[-1], *values[2 * stage : 2 * stage + 2])
            images.append(pooled)
            choices.append(choice)
        return images, choices, self.behind.forward(values[2 * self.stages :], images.pop())


def _of_colors(values: Sequence[Tensor]) -> Sequence[Tensor]:
    """The same parameters, but the first filters see an empty second channel if they see gray images.

    For one channel, the Triton of torch 2.11 loses a tap of 5 x 5 filters at a row's second pixel on the way back.
    """
    filters, *others = values
    if filters.shape[2] > 1:
        return values
    last = filters.permute(0, 1, 3, 4, 2)
    return [torch.cat([last, torch.zeros_like(last)], -1).permute(0, 1, 4, 2, 3), *others]


def fuse(layers: Sequence[nn.Module]) -> Fused | None:
    """How a chain of layers is computed so, if it is such a network and there are kernels."""
    stages = 0
    while pools(layers[3 * stages :]) and _is_known(layers[3 * stages], first=stages == 0):
        stages += 1
    behind = layers[3 * stages :]
    plain = not any(isinstance(layer, nn.Conv2d | nn.MaxPool2d) for layer in behind)
    learns = any(isinstance(layer, nn.Linear) for layer in behind)
    kernel = kernels("wafl.tasks.gpu.conv_kernel") if stages and plain and learns else None
    return Fused(stages, Chain(behind), kernel) if kernel is not None else None


def _is_known(layer: nn.Module, *, first: bool) -> bool:
    assert isinstance(layer, nn.Conv2d)
    side, depth = layer.kernel_size[0], layer.in_channels
    same = layer.kernel_size == (side, side) and layer.padding == (side // 2, side // 2) and side in (3, 5)
    whole = layer.stride == layer.dilation == (1, 1) and layer.groups == 1
    fits = depth <= 16 // side if first else depth in CHANNELS
    return same and whole and fits and layer.out_channels in CHANNELS
