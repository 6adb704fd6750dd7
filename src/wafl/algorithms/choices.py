"""The choices that presets have in common: each preset offers those that it does not decide itself.

A preset is a dataclass that inherits the options of its own part and these (see :func:`wafl.methods.preset`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from wafl.algorithms.parts import LocalStep, Optimizer, Server
from wafl.core.options import part
from wafl.weights import ClientWeights


@dataclass(frozen=True)
class About:
    """What the list of methods says about one of them, in addition to its docstring.

    Args:
        paper: the publication.
        equation: what is minimized or how a step goes, in TeX.
        use: when to use it.
        lacks: options that one may look for in vain, and why.
    """

    paper: str
    equation: str
    use: str
    lacks: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def short(self) -> str:
        """The authors and the year, without the title."""
        return re.sub(r'"[^"]*",? ', "", self.paper)


class Extending:
    """What all presets share: the parts that they decide."""

    def parts(self) -> dict[str, Any]:
        """By default those that the preset extends: each class names its slot in a method."""
        return {base.slot: part(self, base) for base in type(self).__bases__ if hasattr(base, "slot")}


@dataclass(frozen=True, kw_only=True)
class Weighted(Extending):
    """A method that leaves the client weights open."""

    client_weights: Annotated[
        ClientWeights | None, "How much each client counts (wafl.weights); by default its share of the examples."
    ] = None


@dataclass(frozen=True, kw_only=True)
class Served(Extending):
    """A method that leaves the server open."""

    server: Annotated[
        Server | Optimizer | None, "What becomes of the clients' models (wafl.servers); by default their mean."
    ] = None


@dataclass(frozen=True, kw_only=True)
class Stepped(Extending):
    """A method that leaves the local step open."""

    local: Annotated[
        LocalStep | None, "What clients do with a gradient (wafl.local); by default they descend along it."
    ] = None
