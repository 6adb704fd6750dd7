"""Dataclasses and mappings of tensors, treated as one value."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from torch import Tensor

T = TypeVar("T")


def mapped(function: Callable[..., Tensor], first: T, *others: T) -> T:
    """``first`` with other tensors: what the function makes of each and of those at its place in the others.

    >>> import torch
    >>> mapped(torch.add, {"a": torch.tensor(1), "b": None}, {"a": torch.tensor(2), "b": None})
    {'a': tensor(3), 'b': None}
    """
    if isinstance(first, Tensor):
        return cast(T, function(first, *others))
    if isinstance(first, Mapping):
        parts = cast(Mapping[str, Any], first)
        rest = cast(tuple[Mapping[str, Any], ...], others)
        return cast(T, {name: mapped(function, part, *(each[name] for each in rest)) for name, part in parts.items()})
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        changed = {name: mapped(function, *(getattr(each, name) for each in (first, *others))) for name in names}
        return cast(T, replace(cast(Any, first), **changed))
    return first


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors of a value."""
    found: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(take, value)
    return found
