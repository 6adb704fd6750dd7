"""Compute a convolution with bias, ReLU and 2 x 2 max pooling, and its gradient in the images, in one kernel each.

The filters' outputs are never written: the backward pass needs only the index of the chosen pixel in each window.
Filters of each lane ``[O, I, S, S]`` have their channels last (``prepared``). Products use bfloat16 and are summed in
float32, then rounded.
"""

# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

POOLED, FEW, MANY, BLOCK = 64, 64, 128, 1024
"""The work of a program.

These are the pooled pixels in the forward pass, the pixels in the backward pass to few and to many channels, and
numbers.
"""
NONE = tl.constexpr(4)
"""The index that replaces a pixel of a window whose largest value is not positive, so that its gradient is zero."""


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pooled images ``[L, B, O, H/2, W/2]`` of ``[L, B, I, H, W]``, and the chosen pixel of each window.

    Images of few channels are float32 with channels first; images of 16 or more channels are bfloat16 with channels
    last.
    """
    lanes, images, _, height, width = x.shape
    _, channels, depth, side, _ = weight.shape
    size = lanes, images, height // 2, width // 2, channels
    out = torch.empty(size, dtype=torch.bfloat16, device=x.device)
    choice = torch.empty(size, dtype=torch.int8, device=x.device)
    taps = depth * side * side
    wide = depth >= 16
    grid = (triton.cdiv(images * height * width // 4, POOLED), lanes)
    _forward[grid](
        x, weight, bias, out, choice, images, height, width, *x.stride(),
        depth, channels, side, POOLED, depth if wide else triton.next_power_of_2(max(taps, 16)), wide, num_stages=4,
    )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3), choice


def backward(slope: Tensor, choice: Tensor, weight: Tensor, like: Tensor) -> Tensor:
    """Return the gradient in the images from the gradient in the pooled images.

    Its shape, type and layout are the same as in ``like``.
    """
    lanes, images, depth, height, width = like.shape
    channels, side = weight.shape[1], weight.shape[3]
    slope, gradient = slope.permute(0, 1, 3, 4, 2).contiguous(), torch.empty_like(like)
    sizes = images, height, width, depth, channels, side
    if depth < 16:
        room = triton.next_power_of_2(width)
        pixels = max(FEW, room)
        grid = (triton.cdiv(images * height, pixels // room), lanes)
        _back_to_few[grid](slope, choice, weight, gradient, *sizes, pixels, room, num_stages=1)
        return gradient
    spread = torch.empty(lanes, images, height, width, channels, dtype=slope.dtype, device=slope.device)
    grid = (triton.cdiv(slope.numel(), BLOCK),)
    _spread[grid](slope, choice, spread, slope.numel(), width // 2, channels, BLOCK)
    grid = (triton.cdiv(images * height * width, MANY), lanes)
    _back_to_many[grid](spread, weight, gradient, *sizes, MANY, num_stages=2)
    return gradient


@triton.jit
def _forward(
    x, weight, bias, out, choice, images, height, width, per_lane, per_image, per_channel, per_row, per_pixel,
    DEPTH: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr, POOLED: tl.constexpr, STEP: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * POOLED + tl.arange(0, POOLED)
    inside = pixel < images * (height // 2) * (width // 2)
    top, left = 2 * (pixel // (width // 2) % (height // 2)), 2 * (pixel % (width // 2))
    x += lane * per_lane
    image = pixel // ((height // 2) * (width // 2)) * per_image
    channel = tl.arange(0, CHANNELS)
    weight += lane * CHANNELS * DEPTH * SIDE * SIDE
    row = channel[None, :] * (DEPTH * SIDE * SIDE)
    one = tl.zeros([POOLED, CHANNELS], tl.float32)
    two = tl.zeros([POOLED, CHANNELS], tl.float32)
    three = tl.zeros([POOLED, CHANNELS], tl.float32)
    four = tl.zeros([POOLED, CHANNELS], tl.float32)
    step = tl.arange(0, STEP)
    for tap in range(SIDE * SIDE if WIDE else 1):
        if WIDE:  # the channels of one tap
            depth, below, beside = step, tap // SIDE, tap % SIDE
            valid = step < DEPTH
        else:  # all taps and channels
            depth, below, beside = step % DEPTH, step // DEPTH // SIDE, step // DEPTH % SIDE
            valid = step < DEPTH * SIDE * SIDE
        filters = tl.load(weight + row + tap * DEPTH + step[:, None], mask=valid[:, None], other=0.0)
        known = inside[:, None] & valid[None, :]
        y, across = top[:, None] + below - SIDE // 2, left[:, None] + beside - SIDE // 2
        pointer = x + image[:, None] + depth[None, :] * per_channel + y * per_row + across * per_pixel
        one = tl.dot(_seen(pointer, known, y, across, height, width), filters, one)
        two = tl.dot(_seen(pointer + per_pixel, known, y, across + 1, height, width), filters, two)
        pointer += per_row
        three = tl.dot(_seen(pointer, known, y + 1, across, height, width), filters, three)
        four = tl.dot(_seen(pointer + per_pixel, known, y + 1, across + 1, height, width), filters, four)
    offset = tl.load(bias + lane * CHANNELS + channel).to(tl.float32)[None, :]
    most, taken = _rounded(_rounded(one) + offset), tl.zeros([POOLED, CHANNELS], tl.int32)
    most, taken = _larger(most, taken, _rounded(_rounded(two) + offset), 1)
    most, taken = _larger(most, taken, _rounded(_rounded(three) + offset), 2)
    most, taken = _larger(most, taken, _rounded(_rounded(four) + offset), 3)
    most, taken = _larger(most, tl.where(most > 0, taken, NONE), 0.0, NONE)
    at = (lane * images * (height // 2) * (width // 2) + pixel)[:, None] * CHANNELS + channel[None, :]
    tl.store(out + at, most.to(tl.bfloat16), mask=inside[:, None])
    tl.store(choice + at, taken.to(tl.int8), mask=inside[:, None])


@triton.jit
def _seen(pointer, known, y, across, height, width):
    """Return the filters' input, zero outside the image."""
    known &= (y >= 0) & (y < height) & (across >= 0) & (across < width)
    return tl.load(pointer, mask=known, other=0.0).to(tl.bfloat16)


@triton.jit
def _larger(most, taken, value, number):
    """Return the larger of two values, or a NaN if there is one, and its number; of equal values, the first."""
    return tl.maximum(most, value, propagate_nan=tl.PropagateNan.ALL), tl.where(value > most, number, taken)


@triton.jit
def _rounded(value):
    return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _spread(slope, choice, spread, count, across, CHANNELS: tl.constexpr, SIDE: tl.constexpr):
    """Write the slopes of pooled pixels to the chosen pixels, and zeros to the others."""
    index = tl.program_id(0).to(tl.int64) * SIDE + tl.arange(0, SIDE)
    inside = index < count
    window = index // CHANNELS
    first = (4 * (window // across) * across + 2 * (window % across)) * CHANNELS + index % CHANNELS
    taken, rise = tl.load(choice + index, mask=inside), tl.load(slope + index, mask=inside)
    none = tl.zeros_like(rise)
    below = 2 * across * CHANNELS
    tl.store(spread + first, tl.where(taken == 0, rise, none), mask=inside)
    tl.store(spread + first + CHANNELS, tl.where(taken == 1, rise, none), mask=inside)
    tl.store(spread + first + below, tl.where(taken == 2, rise, none), mask=inside)
    tl.store(spread + first + below + CHANNELS, tl.where(taken == 3, rise, none), mask=inside)


@triton.jit
def _back_to_many(
    slope, weight, gradient, images, height, width,
    DEPTH: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """Compute the slopes at images of many channels from the slopes at the filters' outputs."""
    lane = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside, y, across = pixel < images * height * width, pixel // width % height, pixel % width
    depth, channel = tl.arange(0, DEPTH), tl.arange(0, CHANNELS)
    slope += lane * images * height * width * CHANNELS
    weight += lane * CHANNELS * DEPTH * SIDE * SIDE
    total = tl.zeros([PIXELS, DEPTH], tl.float32)
    for tap in range(SIDE * SIDE):
        below, beside = SIDE // 2 - tap // SIDE, SIDE // 2 - tap % SIDE
        pointer = slope + (pixel + below * width + beside)[:, None] * CHANNELS + channel[None, :]
        rise = _seen(pointer, inside[:, None], (y + below)[:, None], (across + beside)[:, None], height, width)
        filters = tl.load(weight + (channel[:, None] * (SIDE * SIDE) + tap) * DEPTH + depth[None, :])
        total = tl.dot(rise, filters, total)
    at = (lane * images * height * width + pixel)[:, None] * DEPTH + depth[None, :]
    tl.store(gradient + at, total.to(tl.bfloat16), mask=inside[:, None])


@triton.jit
def _back_to_few(
    slope, choice, weight, gradient, images, height, width,
    DEPTH: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr, PIXELS: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Compute the slopes at images of few channels from the slopes at the pooled images.

    A row of a filter is 16 columns of one product, each of which is then moved to its position. A row of slopes is
    therefore read once for each row of a filter, and not for each tap. A program handles whole rows, of ``ROOM``
    pixels.
    """
    lane = tl.program_id(1).to(tl.int64)
    pixel, column, channel = tl.arange(0, PIXELS), tl.arange(0, 16), tl.arange(0, CHANNELS)
    row, across = tl.program_id(0) * (PIXELS // ROOM) + pixel // ROOM, pixel % ROOM
    image, y = row // height, row % height
    inside = (row < images * height) & (across < width)
    pooled = lane * images * (height // 2) * (width // 2) * CHANNELS
    slope += pooled
    choice += pooled
    weight += lane * CHANNELS * DEPTH * SIDE * SIDE
    total = tl.zeros([PIXELS, 16], tl.float32)
    for tap in range(SIDE):
        down = y + SIDE // 2 - tap
        known = (inside & (down >= 0) & (down < height))[:, None]
        window = (image * (height // 2) + down // 2) * (width // 2) + across // 2
        at = window[:, None] * CHANNELS + channel[None, :]
        taken = tl.load(choice + at, mask=known, other=NONE)
        rise = tl.load(slope + at, mask=known, other=0.0)
        rise = tl.where(taken == (2 * (down & 1) + (across & 1))[:, None], rise, 0.0).to(tl.bfloat16)
        filters = weight + (channel[:, None] * SIDE + tap) * (SIDE * DEPTH) + column[None, :]
        total = tl.dot(rise, tl.load(filters, mask=(column < SIDE * DEPTH)[None, :], other=0.0), total)
    beside = (SIDE // 2 - column // DEPTH)[None, :]
    source = across[:, None] + beside
    gathered = tl.gather(total, tl.minimum(tl.maximum(pixel[:, None] + beside, 0), PIXELS - 1), 0)
    total = tl.where((source >= 0) & (source < width), gathered, 0.0)
    at = gradient + (lane * images + image) * DEPTH * height * width + y * width + across
    for depth in tl.static_range(DEPTH):
        tl.store(
            at + depth * height * width, tl.sum(tl.where((column % DEPTH == depth)[None, :], total, 0.0), 1), inside
        )
