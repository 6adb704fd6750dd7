"""What a method is made of in addition to an adversary and client weights: a local step and a server, as protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from wafl.algorithms.messages import Query, Replies, Vectors


@dataclass(frozen=True)
class LocalState:
    """What a local step is given, for all lanes at once.

    Args:
        start: the parameters that the server sent, ``[L, P]``.
        params: the parameters now, ``[L, P]``.
        scalars: the hyperparameters, each ``[L, 1]``.
        vectors: what the server sent with the parameters, each ``[L, P]``.
        memory: what each client kept from its last round, ``[L, M]``.
        carry: what the step keeps within this round, one row per lane.
    """

    start: Tensor
    params: Tensor
    scalars: Mapping[str, Tensor]
    vectors: Vectors
    memory: Tensor | None = None
    carry: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True)
class Outcome:
    """How a client's round ends.

    Args:
        memory: what the client keeps until its next round, ``[L, M]``.
        vectors: what it sends in addition to its parameters, each ``[L, P]``.
    """

    memory: Tensor | None = None
    vectors: Vectors = field(default_factory=dict[str, Tensor])


@runtime_checkable
class LocalStep(Protocol):
    """A rule for local steps. Clients call begin, direction and end; the server calls initial_vectors and tell."""

    @property
    def sends(self) -> tuple[str, ...]:
        """The names of the vectors that :meth:`end` sends."""
        ...

    def scalars(self) -> dict[str, float]:
        """The hyperparameters that may differ between lanes of one batched run."""
        ...

    def initial_memory(self, params: Tensor) -> Tensor | None:
        """What a client holds before it first takes part, as one vector; None for a step without memory."""
        ...

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        """The carry before the first step, each tensor with one row per lane."""
        ...

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """What to descend along instead of the gradient ``[L, P]``, and the new carry.

        There is no need to look out for lanes that have finished: the caller keeps their parameters and carry.
        """
        ...

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        """What to keep and to send after the last step; ``steps [L, 1]`` is how many each lane took."""
        ...

    def initial_vectors(self, params: Tensor) -> Vectors:
        """What the server remembers for this rule, and sends with the parameters."""
        ...

    def tell(self, vectors: Vectors, query: Query, replies: Replies, client_weights: Tensor) -> Vectors:
        """The server's vectors after a round; ``client_weights`` are those of the clients that replied."""
        ...


@runtime_checkable
class Server(Protocol):
    """From the clients' replies to the next model; what it remembers is in its own vectors."""

    def initial_vectors(self, params: Tensor) -> Vectors:
        """What it remembers before the first round."""
        ...

    def step(self, params: Tensor, weights: Tensor, replies: Replies, vectors: Vectors) -> tuple[Tensor, Vectors]:
        """The next parameters and vectors; ``weights`` says how much each reply counts, and at least one counts."""
        ...


@runtime_checkable
class Optimizer(Protocol):
    """From the mean of the clients' models to the next model: ``mean - params`` stands in for a negative gradient."""

    def initial_vectors(self, params: Tensor) -> Vectors:
        """What it remembers before the first round."""
        ...

    def apply(self, params: Tensor, mean: Tensor, vectors: Vectors) -> tuple[Tensor, Vectors]:
        """The next parameters and vectors."""
        ...
