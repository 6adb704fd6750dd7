"""Control the precision of a GPU, and whether it repeats the same bits.

``float32`` means float32: by default, torch lets convolutions on a GPU round their inputs to the 10 bits of TF32.
``tf32`` allows this rounding in convolutions and matrix products. ``bfloat16`` computes the layers of a network with 8
bits. Parameters, moves, losses and sums stay float32, and so does a linear model, which spends its time on reading
examples.
"""

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from wafl.tasks.structure.sequence import is_plain

FLOAT32, TF32, BFLOAT16 = "float32", "tf32", "bfloat16"

# The better of cuDNN's two rules that choose algorithms without timing them: ResNet-18 trains up to 1.6 times as fast.
# torch reads this once, at the first convolution of a process.
os.environ.setdefault("TORCH_CUDNN_USE_HEURISTIC_MODE_B", "1")

_reduced: ContextVar[bool] = ContextVar("reduced", default=False)


@contextmanager
def computing(precision: str, device: torch.device, *, deterministic: bool = True) -> Generator[None, None, None]:
    """Compute with this precision; on a CPU, ``tf32`` is the same as ``float32``.

    If not deterministic, cuDNN times its algorithms and takes the fastest, whose sums may change their order each time.
    """
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark
    token = _reduced.set(precision == BFLOAT16)
    if device.type == "cuda":
        cudnn.allow_tf32 = matmul.allow_tf32 = precision == TF32
        cudnn.deterministic, cudnn.benchmark = deterministic, not deterministic
    try:
        yield
    finally:
        _reduced.reset(token)
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def is_reduced() -> bool:
    """Return whether layers are computed with fewer digits than their parameters have."""
    return _reduced.get()


def laid_out(tensor: torch.Tensor) -> torch.Tensor:
    """Return images and filters with their channels last, which suits tensor cores, and other tensors unchanged."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def layers(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a network's layers are called.

    Captured steps do not share their casts with others.
    """
    if not _reduced.get():
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)


class _Reads(TorchFunctionMode):
    """A counter of the reads of each tensor: by layers that a reduced precision casts, and in total."""

    def __init__(self) -> None:
        super().__init__()
        self.by_layers, self.by_all = Counter[int](), Counter[int]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        tensors = [id(value) for value in given if isinstance(value, torch.Tensor)]
        self.by_all.update(tensors)
        if func in (nn.functional.linear, nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d):
            self.by_layers.update(tensors[1:])
        return func(*args, **(kwargs or {}))


def cast_by_layers(call: Callable[[], object], params: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Return the names of parameters that a call reads once, in a layer that a reduced precision casts."""
    with torch.no_grad(), _Reads() as reads:
        call()
    return frozenset(
        name for name, value in params.items() if reads.by_layers[id(value)] == reads.by_all[id(value)] == 1
    )


@dataclass(frozen=True)
class Casts:
    """The values that a reduced precision casts in a plain sequence: parameters by name, and perhaps the inputs."""

    params: frozenset[str]
    inputs: bool


def casts_of(module: nn.Module) -> Casts:
    """Return the parameters of layers that nothing else can read, and whether the first layer casts the inputs."""
    layers = list(_leaves(module))
    does = [layer for _, layer in layers if not is_plain(layer, nn.Flatten) and not is_plain(layer, nn.Identity)]
    cast = [(prefix, layer) for prefix, layer in layers if _is_cast(layer)]
    params = frozenset(f"{prefix}{name}" for prefix, layer in cast for name, _ in layer.named_parameters())
    return Casts(params, inputs=bool(does) and _is_cast(does[0]))


def _leaves(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if is_plain(module, nn.Sequential):
        for name, child in module.named_children():
            yield from _leaves(child, f"{prefix}{name}.")
    else:
        yield prefix, module


def _is_cast(layer: nn.Module) -> bool:
    """Return whether a reduced precision casts the parameters and inputs of a layer."""
    return any(is_plain(layer, kind) for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))


def prepared(values: torch.Tensor) -> torch.Tensor:
    """Return parameters or inputs of all lanes in the layers' layout: cast, with channels last."""
    if not is_reduced() or values.dtype != torch.float32:
        return values
    if values.ndim != 5:
        return values.to(torch.bfloat16)
    last = values.permute(0, 1, 3, 4, 2).to(torch.bfloat16, memory_format=torch.contiguous_format)
    return last.permute(0, 1, 4, 2, 3)


def aligned(values: torch.Tensor) -> torch.Tensor:
    """Return the values of all lanes, copied if a GPU cannot read four numbers at once at the start of each lane."""
    starts = values.data_ptr(), values.stride(0) * values.element_size()
    helps = any(begin % 16 for begin in starts) and values[0].numel() * values.element_size() % 16 == 0
    return values.clone(memory_format=torch.contiguous_format) if helps else values
