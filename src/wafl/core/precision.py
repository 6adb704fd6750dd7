"""How many digits a GPU computes with.

``float32`` means float32: by default, torch lets convolutions on a GPU round their inputs to the 10 bits of TF32.
``tf32`` lets them, and matrix products too. ``bfloat16`` computes the layers of a network with 8 bits; parameters,
moves, losses and sums stay float32, and so does a linear model, whose time goes into reading the examples.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch

FLOAT32, TF32, BFLOAT16 = "float32", "tf32", "bfloat16"

_reduced: ContextVar[bool] = ContextVar("reduced", default=False)


@contextmanager
def computing(precision: str, device: torch.device) -> Generator[None, None, None]:
    """Compute with this precision, the same bits each time; on a CPU, ``tf32`` is the same as ``float32``."""
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic
    token = _reduced.set(precision == BFLOAT16)
    if device.type == "cuda":
        cudnn.allow_tf32 = matmul.allow_tf32 = precision == TF32
        cudnn.deterministic = True
    try:
        yield
    finally:
        _reduced.reset(token)
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic = before


def is_reduced() -> bool:
    """Whether layers are computed with fewer digits than their parameters have."""
    return _reduced.get()


def laid_out(tensor: torch.Tensor) -> torch.Tensor:
    """Images and filters with their channels last, as tensor cores want them; anything else as it is."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def layers(device: torch.device) -> AbstractContextManager[object]:
    """What the layers of a network are called in; a captured step cannot share their casts with others."""
    if not is_reduced():
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
