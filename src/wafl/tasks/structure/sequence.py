"""What a model is made of: plain layers, one after another."""

from __future__ import annotations

from torch import nn


def members(sequence: nn.Module) -> list[nn.Module]:
    """The modules of a sequence; one that is used twice is listed twice."""
    return [module for module in sequence._modules.values() if module is not None]  # pyright: ignore[reportPrivateUsage]


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether the module computes what its kind computes: no custom forward, no hooks, no parametrization."""
    hooked = bool(module._forward_hooks or module._forward_pre_hooks)  # pyright: ignore[reportPrivateUsage]
    parametrized = nn.utils.parametrize.is_parametrized(module)
    return isinstance(module, kind) and type(module).forward is kind.forward and not hooked and not parametrized
