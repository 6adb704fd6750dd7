"""Dropout with masks that are drawn from a key, so that runs repeat and lanes do not depend on their neighbors.

Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting" (JMLR 2014).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from wafl.base.random import Key, Purpose, uniform

_WHOLE = (functional.dropout, torch.dropout)
_CHANNELS = (functional.dropout1d, functional.dropout2d, functional.dropout3d)
"""These drop whole channels, the second dimension."""


@dataclass(frozen=True)
class Site:
    """One dropout of a model: the shape of its mask for a batch of one lane, and the share that it drops."""

    shape: tuple[int, ...]
    rate: float


class _EachDropout(TorchFunctionMode):
    """Lets a function decide what a model's dropouts do, whether they are modules or calls of ``torch``."""

    def __init__(self, apply: Callable[[Tensor, Site], Tensor]) -> None:
        super().__init__()
        self._apply = apply

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _WHOLE or func in _CHANNELS:
            x, rate, active = _arguments(*args, **kwargs)
            if not active or rate == 0.0:
                return x
            shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if func in _CHANNELS else tuple(x.shape)
            return self._apply(x, Site(shape, rate))
        return func(*args, **kwargs)


def masked(masks: Iterator[Tensor]) -> TorchFunctionMode:
    """Within it, every dropout multiplies by the next of these masks."""
    return _EachDropout(lambda x, site: x * next(masks))


def recorded(sites: list[Site]) -> TorchFunctionMode:
    """Within it, dropouts drop nothing; what they would have dropped is added to ``sites``."""

    def note(x: Tensor, site: Site) -> Tensor:
        sites.append(site)
        return x

    return _EachDropout(note)


def draw_masks(sites: Sequence[Site], key: Key, like: Tensor) -> tuple[Tensor, ...]:
    """One mask ``[L, *shape]`` per site, 0 or ``1 / (1 - rate)``, drawn example by example: padding changes none."""
    masks: list[Tensor] = []
    for number, site in enumerate(sites):
        count = torch.Size(site.shape).numel()
        kept = uniform(key, Purpose.DROPOUT + (number << 8), count) >= site.rate
        masks.append(kept.view(-1, *site.shape).to(like) / max(1.0 - site.rate, torch.finfo(like.dtype).tiny))
    return tuple(masks)


def _arguments(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool | None = None
) -> tuple[Tensor, float, bool]:
    """The arguments of ``functional.dropout`` and of ``torch.dropout``, which calls one of them by another name."""
    return input, p, training if train is None else train
