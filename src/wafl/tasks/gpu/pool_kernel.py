"""Compute bias, ReLU and 2 x 2 max pooling of images on a GPU, in one kernel forward and one backward.

As separate operations, each reads and writes every pixel, which takes longer than a small convolution. Images are
viewed as ``[rows, width, inner]``: ``inner`` is the number of channels if these are last, and otherwise 1.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""The number of pooled pixels per program."""


def forward(x: Tensor, bias: Tensor) -> Tensor:
    """Return ``max_pool2d(relu(x + bias), 2)`` of images ``[N, C, H, W]`` with even sides."""
    last = not x.is_contiguous()
    size = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
    out = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=_format(last))
    _forward[(triton.cdiv(out.numel(), BLOCK),)](x, bias, out, out.numel(), *_sides(x, last), BLOCK)
    return out


def backward(x: Tensor, bias: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient in ``x + bias``: the pooled gradient goes to the first of the largest values."""
    last = not x.is_contiguous()
    slope, gradient = slope.contiguous(memory_format=_format(last)), torch.empty_like(x)
    _backward[(triton.cdiv(slope.numel(), BLOCK),)](x, bias, slope, gradient, slope.numel(), *_sides(x, last), BLOCK)
    return gradient


def _format(last: bool) -> torch.memory_format:
    return torch.channels_last if last else torch.contiguous_format


def _sides(x: Tensor, last: bool) -> tuple[int, int, int, int]:
    """Return the number of consecutive pooled pixels of a channel, the channels, the pooled width, and ``inner``."""
    _, channels, height, width = x.shape
    return (1 if last else height * width // 4), channels, width // 2, channels if last else 1


@triton.jit
def _window(x, bias, pixel, inside, together, channels, width, inner):
    """Return the start of a pooled pixel's window, and its four values."""
    across = pixel // inner
    first = (4 * (across // width) * width + 2 * (across % width)) * inner + pixel % inner
    offset = tl.load(bias + pixel // together % channels, mask=inside, other=0.0).to(tl.float32)
    kind = x.dtype.element_ty
    below = 2 * width * inner
    # Rounded as a sum that is written down: the largest of rounded numbers may not be the largest.
    one = (tl.load(x + first, mask=inside, other=0.0).to(tl.float32) + offset).to(kind).to(tl.float32)
    two = (tl.load(x + first + inner, mask=inside, other=0.0).to(tl.float32) + offset).to(kind).to(tl.float32)
    three = (tl.load(x + first + below, mask=inside, other=0.0).to(tl.float32) + offset).to(kind).to(tl.float32)
    four = (tl.load(x + first + below + inner, mask=inside, other=0.0).to(tl.float32) + offset).to(kind).to(tl.float32)
    return first, one, two, three, four


@triton.jit
def _larger(one, two):
    return tl.maximum(one, two, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _forward(x, bias, out, count, together, channels, width, inner, SIDE: tl.constexpr):  # noqa: N803
    pixel = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    inside = pixel < count
    _, one, two, three, four = _window(x, bias, pixel, inside, together, channels, width, inner)
    most = _larger(_larger(one, two), _larger(three, four))
    tl.store(out + pixel, _larger(most, 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(x, bias, slope, gradient, count, together, channels, width, inner, SIDE: tl.constexpr):  # noqa: N803
    pixel = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    inside = pixel < count
    first, one, two, three, four = _window(x, bias, pixel, inside, together, channels, width, inner)
    most = tl.maximum(tl.maximum(one, two), tl.maximum(three, four))
    whole = tl.load(slope + pixel, mask=inside, other=0.0)
    rest = tl.where(most > 0, whole, 0.0).to(whole.dtype)
    none = tl.zeros_like(rest)
    below = 2 * width * inner
    tl.store(gradient + first, tl.where(one == most, rest, none), mask=inside)
    rest = tl.where(one == most, none, rest)
    tl.store(gradient + first + inner, tl.where(two == most, rest, none), mask=inside)
    rest = tl.where(two == most, none, rest)
    tl.store(gradient + first + below, tl.where(three == most, rest, none), mask=inside)
    rest = tl.where(three == most, none, rest)
    tl.store(gradient + first + below + inner, tl.where(four == most, rest, none), mask=inside)
