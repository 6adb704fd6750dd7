"""What a method is made of, in addition to an adversary and client weights: a local step and a server, as protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from wafl.algorithms.messages import Query, Replies, Vectors


@dataclass(frozen=True)
class LocalState:
    """What a local step is given, for every lane at once.

    ``start [L, P]`` is what the server sent and ``params [L, P]`` where the lane is now; ``scalars`` are its
    hyperparameters ``[L, 1]``, ``vectors`` what the server sent with the parameters, ``memory [L, M]`` what the client
    kept from its last round, ``carry`` what the step keeps within this one.
    """

    start: Tensor
    params: Tensor
    scalars: Mapping[str, Tensor]
    vectors: Vectors
    memory: Tensor | None = None
    carry: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True)
class Outcome:
    """What a client keeps until its next round, and the vectors it sends in addition to its parameters."""

    memory: Tensor | None = None
    vectors: Vectors = field(default_factory=dict[str, Tensor])


@runtime_checkable
class LocalStep(Protocol):
    """A rule for local steps. On the client: begin, direction, end. On the server: initial_vectors, tell."""

    @property
    def sends(self) -> tuple[str, ...]:
        """The names of the vectors that :meth:`end` sends."""
        ...

    def scalars(self) -> dict[str, float]:
        """Hyperparameters that may differ between lanes of one batched run."""
        ...

    def initial_memory(self, params: Tensor) -> Tensor | None:
        """What a client holds before it first takes part, one vector; None for a step without memory."""
        ...

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        """The carry before the first step, each tensor with one row per lane."""
        ...

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """What to descend along instead of the gradient ``[L, P]``, and the new carry.

        Lanes that have finished are put back by the caller.
        """
        ...

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        """After the last step; ``steps [L, 1]`` is how many each lane took."""
        ...

    def initial_vectors(self, params: Tensor) -> Vectors:
        """What the server keeps, and sends with the parameters."""
        ...

    def tell(self, vectors: Vectors, query: Query, replies: Replies, client_weights: Tensor) -> Vectors:
        """The server's vectors after a round; ``client_weights`` are those of the clients that replied."""
        ...


@runtime_checkable
class Server(Protocol):
    """From the clients' replies to the next model; what it remembers is in vectors of its own."""

    def initial_vectors(self, params: Tensor) -> Vectors:
        """Before the first round."""
        ...

    def step(self, params: Tensor, weights: Tensor, replies: Replies, vectors: Vectors) -> tuple[Tensor, Vectors]:
        """The next parameters and vectors; ``weights`` says how much each reply counts, and some weight is positive."""
        ...


@runtime_checkable
class Optimizer(Protocol):
    """From the clients' mean model to the next one: ``mean - params`` is the direction that a server descends along."""

    def initial_vectors(self, params: Tensor) -> Vectors: ...

    def apply(self, params: Tensor, mean: Tensor, vectors: Vectors) -> tuple[Tensor, Vectors]: ...
