"""Lanes one after another, for models that ``torch.func`` cannot batch: plain autograd, the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.func.vmap(function)`` computes, lane by lane, for arguments that are tensors or tuples of them."""

    def each_lane(*args: Any) -> Any:
        results = [function(*(_at(value, lane) for value in args)) for lane in range(len(args[0]))]
        return _stacked(results)

    return each_lane


def autograd_gradient(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """What ``torch.func.grad(function, has_aux=True)`` computes; zero if the result does not depend on the input."""

    def gradient(first: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = first.detach().requires_grad_()
            value, extra = function(point, *rest)
            found = torch.autograd.grad(value, point, allow_unused=True)[0] if value.requires_grad else None
        return torch.zeros_like(first) if found is None else found, extra.detach()

    return gradient


def _at(value: Any, lane: int) -> Any:
    return value[lane] if isinstance(value, Tensor) else tuple(_at(part, lane) for part in value)


def _stacked(results: list[Any]) -> Any:
    if isinstance(results[0], Tensor):
        return torch.stack(results)
    return tuple(_stacked(list(parts)) for parts in zip(*results, strict=True))
