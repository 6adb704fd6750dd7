"""What a model is made of: plain layers, one after another, and how much work its convolutions are.

The work decides whether a CPU computes lanes together. A small convolution takes longer to call than to compute, so all
lanes go into one call. A large one keeps the processor busy by itself, and the convolution of many lanes, whose filters
differ, is slower than one convolution after another.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

HARMLESS = {"__init__", "__repr__", "extra_repr", "__annotate__", "__annotate_func__"}
"""What a subclass may have of its own and still compute what its parent computes."""


def members(sequence: nn.Module) -> list[nn.Module]:
    """The modules of a sequence; one that is used twice is listed twice."""
    return [module for module in sequence._modules.values() if module is not None]  # pyright: ignore[reportPrivateUsage]


def is_same(module: nn.Module, made: nn.Module) -> bool:
    """Whether what was made of a module has its layers and its numbers: a module may copy itself as another one."""
    values, made_values = ([*each.named_parameters(), *each.named_buffers()] for each in (module, made))
    return list(_outline(module)) == list(_outline(made)) and all(
        (name, type(value)) == (other, type(kept))
        and torch.equal(value.detach().to(kept).nan_to_num(), kept.nan_to_num())
        for (name, value), (other, kept) in zip(values, made_values, strict=True)
    )


def _outline(module: nn.Module) -> Iterator[Any]:
    """Of each layer its kind, and what is on it: settings, how many parameters, what replaces calls, how many hooks."""
    for name, layer in module.named_modules(remove_duplicate=False):
        yield name, type(layer)
        yield {key: len(cast(Any, value)) if isinstance(value, dict) else 0 for key, value in vars(layer).items()}


def has_hooks(module: nn.Module) -> bool:
    """Whether anything is called before or after the module: hooks of its own, or of all modules."""
    everywhere = torch.nn.modules.module
    hooks = everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks  # pyright: ignore[reportPrivateUsage]
    return bool(hooks or module._forward_hooks or module._forward_pre_hooks)  # pyright: ignore[reportPrivateUsage]


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the module surely computes what its kind computes: it has no hooks, and replaces nothing of the kind."""
    if not isinstance(module, kind):
        return False
    replaced = any(callable(value) and hasattr(type(module), name) for name, value in vars(module).items())
    return not (has_hooks(module) or _replaced_by_subclass(type(module), kind) or replaced)


@cache
def _replaced_by_subclass(subclass: type[nn.Module], kind: type[nn.Module]) -> bool:
    """Whether a class between the module's class and its kind has something that could change what is computed."""
    between = subclass.__mro__[: subclass.__mro__.index(kind)]
    changes = {name for each in between for name, value in vars(each).items() if _counts(name, value)}
    return any(hasattr(kind, name) or name in ("weight", "bias") for name in changes - HARMLESS)


def _counts(name: str, value: object) -> bool:
    """Not what Python itself notes about a class, such as its docstring."""
    return callable(value) or not name.startswith("__")


BUSY = 500_000
"""With more products per example than this, a lane keeps a processor busy (``benchmarks/networks.py``)."""


def convolution_products(module: nn.Module, run: Callable[[], object]) -> int:
    """How many products of numbers convolutions take while ``run`` calls the module."""
    counts: list[int] = []

    def count(layer: nn.Module, args: Any, output: Tensor) -> None:
        counts.append(output.numel() * cast(nn.Conv2d, layer).weight[0].numel())

    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    if not layers:
        return 0
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return sum(counts)
