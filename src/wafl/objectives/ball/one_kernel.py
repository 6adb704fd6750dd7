"""The iteration ``p <- softmax(base + gram p)`` on a GPU in one kernel: examples stay in registers between steps."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 16
"""Examples of a program, and the least side of a matrix that ``tl.dot`` takes."""
MOST_CLASSES = BLOCK
"""62 classes do not stay in registers, and take longer than kernels one after another."""


def softmax_steps(base: Tensor, gram: Tensor, point: Tensor, steps: int) -> Tensor:
    """Where ``steps`` steps lead from the point ``[L, C, B]``, all float32."""
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
