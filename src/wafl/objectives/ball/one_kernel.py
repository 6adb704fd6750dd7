"""Iterate ``p <- softmax(base + gram p)`` on a GPU in one kernel, with examples in registers between steps."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 16
"""The number of examples per program, and the smallest side of a matrix for ``tl.dot``."""
MOST_CLASSES = BLOCK
"""The maximum number of classes; 62 classes exceed the registers and are slower than separate kernels."""


def softmax_steps(base: Tensor, gram: Tensor, point: Tensor, steps: int) -> Tensor:
    """Return the point ``[L, C, B]`` after ``steps`` steps, all in float32."""
    lanes, classes, examples = point.shape
    base, gram, point, end = base.contiguous(), gram.contiguous(), point.contiguous(), torch.empty_like(point)
    _climb[(lanes, triton.cdiv(examples, BLOCK))](base, gram, point, end, classes, examples, steps, BLOCK, num_warps=1)
    return end


@triton.jit
def _climb(base, gram, start, end, classes, examples, steps, SIDE: tl.constexpr):  # noqa: N803
    lane, side = tl.program_id(0), tl.arange(0, SIDE)
    rows, columns = side[:, None], tl.program_id(1) * SIDE + side[None, :]
    offsets = (lane * classes + rows) * examples + columns
    inside = (rows < classes) & (columns < examples)
    pairs = (lane * classes + rows) * classes + side[None, :]
    product = tl.load(gram + pairs, mask=(rows < classes) & (side[None, :] < classes), other=0.0)
    outputs = tl.load(base + offsets, mask=inside, other=0.0)
    outputs = tl.where(rows < classes, outputs, float("-inf"))  # classes that there are not have probability 0
    point = tl.load(start + offsets, mask=inside, other=0.0)
    for _ in range(steps):
        scores = outputs + tl.dot(product, point, input_precision="ieee")
        weights = tl.exp(scores - tl.max(scores, axis=0)[None, :])
        point = weights / tl.sum(weights, axis=0)[None, :]
    tl.store(end + offsets, point, mask=inside)
