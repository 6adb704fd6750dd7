"""Compute lanes one by one with plain autograd, for models that ``torch.func`` cannot batch: the same numbers."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import reduce
from typing import Any

import torch
from torch import Tensor

MOST_STREAMS = 32

_POOL: list[torch.cuda.Stream] = []
_side_by_side: ContextVar[bool] = ContextVar("side_by_side", default=False)


def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes ``torch.func.vmap(function)`` lane by lane, for tensors or tuples of tensors."""

    def each_lane(*args: Any) -> Any:
        count = _count(args[0])
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
    """Run each lane in its own CUDA stream during the block, since small networks fill a GPU only together."""
    token = _side_by_side.set(True)
    try:
        yield
    finally:
        _side_by_side.reset(token)


def are_side_by_side() -> bool:
    """Return whether lanes currently run side by side."""
    return _side_by_side.get()


def _streams(count: int) -> list[torch.cuda.Stream]:
    """Return streams for ``count`` lanes, which continue from the current stream; many lanes share streams."""
    while len(_POOL) < min(count, MOST_STREAMS):
        _POOL.append(torch.cuda.Stream())
    for stream in _POOL[:count]:
        stream.wait_stream(torch.cuda.current_stream())
    return _POOL[:count]


def autograd_gradient(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function that computes ``torch.func.grad(function, has_aux=True)`` by autograd.

    The gradient is zero if the result does not depend on the input.
    """

    def gradient(first: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = first.detach().requires_grad_()
            value, extra = function(point, *rest)
            slope = torch.autograd.grad(value, point, allow_unused=True)[0] if value.requires_grad else None
        return torch.zeros_like(first) if slope is None else slope, extra.detach()

    return gradient


def written_gradient(
    function: Callable[..., tuple[Tensor, Tensor]], learns: Sequence[bool]
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a function that computes the extra result and the gradient ``[L, P]``, lane by lane.

    The first argument is a tuple of parameters ``[L, *shape]``, of which some do not learn. The gradient of a lane is
    written to its row at once, zero where the result does not depend on it. Its type is the type of the extra result.
    """

    def gradient(values: tuple[Tensor, ...], *rest: Any) -> tuple[Tensor, Tensor]:
        kind = reduce(torch.promote_types, (value.dtype for value in values))
        width = sum(value[0].numel() for value in values)
        rows = torch.empty(len(values[0]), width, dtype=kind, device=values[0].device)

        def of_lane(values: tuple[Tensor, ...], row: Tensor, *rest: Any) -> Tensor:
            with torch.enable_grad():
                point = [value.detach().requires_grad_(free) for value, free in zip(values, learns, strict=True)]
                total, extra = function(tuple(point), *rest)
                leaves = [value for value in point if value.requires_grad]
                depends = total.requires_grad
                gradients = iter(
                    torch.autograd.grad(total, leaves, allow_unused=True) if depends else [None] * len(leaves)
                )
            slopes = [next(gradients) if free else None for free in learns]
            pieces = [
                torch.zeros_like(value) if slope is None else slope for value, slope in zip(values, slopes, strict=True)
            ]
            torch.cat([piece.reshape(-1) for piece in pieces], out=row)
            return extra.detach()

        extras = in_turn(of_lane)(values, rows, *rest)
        return extras, rows.to(extras.dtype)

    return gradient


def _count(value: Any) -> int:
    return len(value) if isinstance(value, Tensor) else _count(value[0])


def _at(value: Any, lane: int) -> Any:
    return value[lane] if isinstance(value, Tensor) else tuple(_at(item, lane) for item in value)


def _stacked(results: list[Any]) -> Any:
    if isinstance(results[0], Tensor):
        images = results[0].ndim == 4 and results[0].is_contiguous(memory_format=torch.channels_last)
        if images and not results[0].is_contiguous():  # which torch would lay out anew before it stacks them
            return torch.stack([images.permute(0, 2, 3, 1) for images in results]).permute(0, 1, 4, 2, 3)
        return torch.stack(results)
    return tuple(_stacked(list(items)) for items in zip(*results, strict=True))
