"""What may be chosen of a method in addition to its own options; each preset offers those it does not decide itself.

A preset is a dataclass: the options of its own part, and these. Its ``parts`` are what it decides (see
:func:`wafl.methods.preset`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from wafl.algorithms.parts import LocalStep, Optimizer, Server
from wafl.weights import ClientWeights

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """``client_weights``: how much each client counts; by default its share of the examples."""

    client_weights: ClientWeights | None = None


@dataclass(frozen=True, kw_only=True)
class Served:
    """``server``: what becomes of the clients' models (:mod:`wafl.servers`); by default their mean."""

    server: Server | Optimizer | None = None


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """``local``: what clients do with a gradient (:mod:`wafl.local`); by default they descend along it."""

    local: LocalStep | None = None


def part(options: Any, kind: type[T]) -> T:
    """The part of this kind, with those of the options that are its own."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(kind)})  # pyright: ignore[reportArgumentType]
