"""Run convolutional networks on a GPU with kernels for a convolution, ReLU and 2 x 2 max pooling, if Triton exists.

:class:`Pooling` has the bits of the plain layers: bias, ReLU and pooling after a convolution are one kernel.
:class:`Fused` computes in bfloat16, for all lanes at once: each convolution, with its ReLU and pooling, is one kernel
forward and one backward. An ascent repeats these passes. Gradients in the parameters, needed once per local step, use
the plain layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from wafl.tasks.losses import OutputLoss, value_and_slope
from wafl.tasks.structure.sequence import Chain, Passed, is_plain, members


def kernels(name: str) -> Any:
    """Return the module of this name with its kernels, or None without Triton, which only PyTorch for CUDA includes."""
    try:
        return import_module(name)
    except ImportError:
        return None


class Pooling(nn.Sequential):
    """A plain sequence that shares its layers with another sequence and computes the same function."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self._modules = layers._modules  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the outputs of the layers, with one kernel for each bias, ReLU and pooling."""
        layers = members(self)
        while layers:
            if pools(layers):
                x, layers = _pooled(layers[0], x), layers[3:]
            else:
                x, layers = layers[0](x), layers[1:]
        return x


def with_pooling(module: nn.Module) -> nn.Module:
    """Return the model with pooling in one kernel, if it is a plain sequence that pools and the kernel exists."""
    layers = members(module) if is_plain(module, nn.Sequential) else []
    any_pools = any(pools(layers[start:]) for start in range(len(layers)))
    return Pooling(module) if any_pools and _kernel() is not None else module


def pools(layers: Sequence[nn.Module]) -> bool:
    """Return whether layers begin with a convolution with bias, ReLU and 2 x 2 pooling, all without hooks."""
    kinds = (nn.Conv2d, nn.ReLU, nn.MaxPool2d)
    if len(layers) < 3 or not all(is_plain(layer, kind) for layer, kind in zip(layers, kinds, strict=False)):
        return False
    convolution, pool = layers[0], layers[2]
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(pool, nn.MaxPool2d)
    squares = (pool.kernel_size, pool.stride, pool.padding, pool.dilation) in (
        (2, 2, 0, 1),
        ((2, 2), (2, 2), (0, 0), (1, 1)),
    )
    has_bias = convolution.bias is not None and convolution.padding_mode == "zeros"
    return squares and has_bias and not pool.ceil_mode and not pool.return_indices


def _pooled(convolution: Any, x: Tensor) -> Tensor:
    steps = convolution.stride, convolution.padding, convolution.dilation, convolution.groups
    images = nn.functional.conv2d(x, convolution.weight, None, *steps)
    bias = convolution.bias.to(images.dtype)
    dense = images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last)
    known = dense and images.dtype in (torch.float32, torch.bfloat16)
    if images.ndim == 4 and images.shape[2] % 2 == images.shape[3] % 2 == 0 and known:
        return _ReluPool.apply(images, bias)  # pyright: ignore[reportReturnType]
    return nn.functional.max_pool2d((images + bias[:, None, None]).relu(), 2)


class _ReluPool(torch.autograd.Function):
    """``max_pool2d(relu(images + bias), 2)``."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, bias: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(images, bias)
        return _kernel().forward(images, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = _kernel().backward(*ctx.saved_tensors, slope)
        return gradient, gradient.sum((0, 2, 3)) if ctx.needs_input_grad[1] else None


def _kernel() -> Any:
    return kernels("wafl.tasks.gpu.pool_kernel")


CHANNELS = (16, 32, 64, 128)
"""The numbers of channels that suit tensor cores; the first filters have fewer, with up to 16 numbers in a row."""


@dataclass(frozen=True)
class Fused:
    """Convolutions that pool, and the layers after them; ``values`` are all lanes' parameters in the layers' layout."""

    stages: int
    behind: Chain
    kernel: Any

    def takes(self, x: Tensor) -> bool:
        """Return whether x contains images ``[L, B, I, H, W]`` with even sides at every pooling."""
        whole = 1 << self.stages
        return x.dtype == torch.float32 and x.ndim == 5 and x.shape[3] % whole == x.shape[4] % whole == 0

    def outputs(self, values: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs of all lanes."""
        return self._forward(_of_colors(values), x)[2][-1].float()

    def input_gradient(self, values: Sequence[Tensor], x: Tensor, y: Tensor, loss: OutputLoss) -> tuple[Tensor, Tensor]:
        """Return the losses ``[L, B]`` and their gradients in the images."""
        values = _of_colors(values)
        images, choices, passed = self._forward(values, x)
        losses, slope = value_and_slope(loss, passed[-1].float(), y, x.new_ones(x.shape[:2]))
        slope = self.behind.input_slope(values[2 * self.stages :], passed, slope.to(passed[-1].dtype))
        for stage in reversed(range(self.stages)):
            slope = self.kernel.backward(slope, choices[stage], values[2 * stage], images[stage])
        return losses, slope[:, :, : x.shape[2]]

    def _forward(self, values: Sequence[Tensor], x: Tensor) -> tuple[list[Tensor], list[Tensor], Passed]:
        """Return the input of each convolution, its chosen pixels, and the results of the layers after them."""
        gray = x.shape[2] == 1
        images, choices = [torch.cat([x, torch.zeros_like(x)], 2) if gray else x.contiguous()], list[Tensor]()
        for stage in range(self.stages):
            pooled, choice = self.kernel.forward(images[-1], *values[2 * stage : 2 * stage + 2])
            images.append(pooled)
            choices.append(choice)
        return images, choices, self.behind.forward(values[2 * self.stages :], images.pop())


def _of_colors(values: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the parameters with an empty second channel in the first filters, if these take gray images.

    For one channel, the Triton of torch 2.11 loses a tap of 5 x 5 filters at a row's second pixel in the backward pass.
    """
    filters, *others = values
    if filters.shape[2] > 1:
        return values
    last = filters.permute(0, 1, 3, 4, 2)
    return [torch.cat([last, torch.zeros_like(last)], -1).permute(0, 1, 4, 2, 3), *others]


def fuse(layers: Sequence[nn.Module]) -> Fused | None:
    """Return the fused computation of a chain of layers, or None if the layers or the kernels are not suitable."""
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
