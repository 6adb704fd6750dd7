"""Convolution, ReLU and 2 x 2 max pooling: on a GPU, what follows the convolution is one kernel, with the same bits."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wafl.tasks.gpu.kernels import kernels
from wafl.tasks.structure.sequence import is_plain, members


class Pooling(nn.Sequential):
    """A plain sequence that shares its layers with another, and computes the same."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self._modules = layers._modules  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        layers = members(self)
        while layers:
            if pools(layers):
                x, layers = _pooled(layers[0], x), layers[3:]
            else:
                x, layers = layers[0](x), layers[1:]
        return x


def with_pooling(module: nn.Module) -> nn.Module:
    """The same model, which pools in one kernel if it is a plain sequence that pools and there is such a kernel."""
    layers = members(module) if is_plain(module, nn.Sequential) else []
    any_pools = any(pools(layers[start:]) for start in range(len(layers)))
    return Pooling(module) if any_pools and _kernel() is not None else module


def pools(layers: Sequence[nn.Module]) -> bool:
    """Whether these begin with a convolution with bias, a ReLU and a pooling of 2 x 2, which nobody watches."""
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
