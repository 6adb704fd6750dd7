"""The fixed-point iteration ``p <- softmax(base + gram p)`` on a GPU, all its steps in one kernel.

A step has so little to compute that a GPU spends its time between kernels. Here a block of examples stays in registers
from the first step to the last.
"""

# Triton comes with PyTorch for CUDA, and with no other: it is not here where types are checked.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUntypedFunctionDecorator=false, reportUnknownArgumentType=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_CLASSES = 64
"""More would not stay in registers."""
EXAMPLES_PER_BLOCK = 16


def softmax_steps(base: Tensor, gram: Tensor, point: Tensor, steps: int) -> Tensor:
    """Where ``steps`` steps lead from the point ``[L, C, B]``, all float32."""
    lanes, classes, examples = point.shape
    base, gram, point, end = base.contiguous(), gram.contiguous(), point.contiguous(), torch.empty_like(point)
    width = max(16, triton.next_power_of_2(classes))  # what a product of blocks takes at least
    grid = (lanes, triton.cdiv(examples, EXAMPLES_PER_BLOCK))
    _climb[grid](base, gram, point, end, classes, examples, steps, WIDTH=width, BLOCK=EXAMPLES_PER_BLOCK, num_warps=1)
    return end


@triton.jit
def _climb(base, gram, start, end, classes, examples, steps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    lane = tl.program_id(0)
    rows, columns = tl.arange(0, WIDTH), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < classes) & (columns[None, :] < examples)
    places = (lane * classes + rows[:, None]) * examples + columns[None, :]
    pairs = (rows[:, None] < classes) & (rows[None, :] < classes)
    product = tl.load(gram + (lane * classes + rows[:, None]) * classes + rows[None, :], mask=pairs, other=0.0)
    outputs = tl.load(base + places, mask=inside, other=0.0)
    outputs = tl.where(rows[:, None] < classes, outputs, float("-inf"))  # classes that there are not stay at 0
    point = tl.load(start + places, mask=inside, other=0.0)
    for _ in range(steps):
        scores = outputs + tl.dot(product, point, input_precision="ieee")
        weights = tl.exp(scores - tl.max(scores, axis=0)[None, :])
        point = weights / tl.sum(weights, axis=0)[None, :]
    tl.store(end + places, point, mask=inside)
