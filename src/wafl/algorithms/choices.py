"""The choices that presets have in common: each preset offers those that it does not decide itself.

A preset is a dataclass that inherits the options of its own part and these. Its ``parts`` method gives what the preset
decides (see :func:`wafl.methods.preset`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

from wafl.algorithms.parts import LocalStep, Optimizer, Server
from wafl.weights import ClientWeights

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """A method that leaves the client weights open."""

    client_weights: Annotated[
        ClientWeights | None, "How much each client counts (wafl.weights); by default its share of the examples."
    ] = None


@dataclass(frozen=True, kw_only=True)
class Served:
    """A method that leaves the server open."""

    server: Annotated[
        Server | Optimizer | None, "What becomes of the clients' models (wafl.servers); by default their mean."
    ] = None


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A method that leaves the local step open."""

    local: Annotated[
        LocalStep | None, "What clients do with a gradient (wafl.local); by default they descend along it."
    ] = None


def part(options: Any, kind: type[T]) -> T:
    """A part of this kind, made from those of the options that belong to it."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(kind)})  # pyright: ignore[reportArgumentType]
