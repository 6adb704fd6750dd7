"""A base for your own local steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from wafl.algorithms.messages import Query, Replies, Vectors
from wafl.algorithms.parts import LocalState, Outcome


@dataclass(frozen=True)
class Plain:
    """Plain descent, without memory or vectors; override what differs (see :class:`wafl.local.LocalStep`)."""

    @property
    def sends(self) -> tuple[str, ...]:
        return ()

    def scalars(self) -> dict[str, float]:
        return {}

    def initial_memory(self, params: Tensor) -> Tensor | None:
        return None

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        return {}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        return gradient, state.carry

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        return Outcome(state.memory)

    def initial_vectors(self, params: Tensor) -> Vectors:
        return {}

    def tell(self, vectors: Vectors, query: Query, replies: Replies, client_weights: Tensor) -> Vectors:
        return vectors
