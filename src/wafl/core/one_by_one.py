"""Lanes one after another, for models that ``torch.func`` cannot batch: plain autograd, the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

MOST_STREAMS = 16

_POOL: list[torch.cuda.Stream] = []
_side_by_side: ContextVar[bool] = ContextVar("side_by_side", default=False)


def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """What ``torch.func.vmap(function)`` computes, lane by lane, for arguments that are tensors or tuples of them."""

    def each_lane(*args: Any) -> Any:
        count = len(args[0])
        streams = _streams(count) if are_side_by_side() else []
        results: list[Any] = []
        for lane in range(count):
            with torch.cuda.stream(streams[lane % len(streams)]) if streams else nullcontext():
                results.append(function(*(_at(value, lane) for value in args)))
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        return _stacked(results)

    return each_lane


@contextmanager
def side_by_side() -> Generator[None, None, None]:
    """Lanes run in CUDA streams of their own: a small network fills a GPU only together with others."""
    token = _side_by_side.set(True)
    try:
        yield
    finally:
        _side_by_side.reset(token)


def are_side_by_side() -> bool:
    return _side_by_side.get()


def _streams(count: int) -> list[torch.cuda.Stream]:
    """One stream per lane, which goes on from here; many lanes take turns."""
    while len(_POOL) < min(count, MOST_STREAMS):
        _POOL.append(torch.cuda.Stream())
    for stream in _POOL[:count]:
        stream.wait_stream(torch.cuda.current_stream())
    return _POOL[:count]


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
