"""Draw dropout masks from a key, so that runs repeat and lanes do not depend on their neighbors.

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
"""The functions that drop whole channels, the second dimension."""


@dataclass(frozen=True)
class Site:
    """One dropout of a model: the shape of its mask for a batch of one lane, and its rate."""

    shape: tuple[int, ...]
    rate: float


class _EachDropout(TorchFunctionMode):
    """A mode in which a function replaces a model's dropouts, both modules and calls of ``torch``."""

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
    """Return a mode in which every dropout multiplies by the next mask."""
    return _EachDropout(lambda x, site: x * next(masks))


def recorded(sites: list[Site]) -> TorchFunctionMode:
    """Return a mode in which dropouts drop nothing, and are appended to ``sites``."""

    def note(x: Tensor, site: Site) -> Tensor:
        sites.append(site)
        return x

    return _EachDropout(note)


def draw_masks(sites: Sequence[Site], key: Key, like: Tensor) -> tuple[Tensor, ...]:
    """Return one mask ``[L, *shape]`` per site, 0 or ``1 / (1 - rate)``, drawn by example, independent of padding."""
    masks: list[Tensor] = []
    for number, site in enumerate(sites):
        count = torch.Size(site.shape).numel()
        kept = uniform(key, Purpose.DROPOUT + (number << 8), count) >= site.rate
        masks.append(kept.view(-1, *site.shape).to(like) / max(1.0 - site.rate, torch.finfo(like.dtype).tiny))
    return tuple(masks)


def _arguments(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool | None = None
) -> tuple[Tensor, float, bool]:
    """Return the arguments of ``functional.dropout`` or ``torch.dropout``, which differ in one name."""
    return input, p, training if train is None else train
