"""Define local steps: the base class of the clients' use of a gradient, and its input."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Annotated, ClassVar

from torch import Tensor

from wafl.base.options import Part, record
from wafl.parts.client_weights import ClientWeights
from wafl.parts.messages import Query, Replies, Vectors


def _outside(params: Tensor) -> Tensor:
    raise ValueError("gradient_at() can be called only in direction(), where there is a batch")


@record
class LocalState:
    """The input of a local step, for all lanes at once."""

    start: Annotated[Tensor, "The parameters that the server sent, ``[L, P]``."]
    params: Annotated[Tensor, "The parameters now, ``[L, P]``."]
    scalars: Annotated[Mapping[str, Tensor], "The hyperparameters, each ``[L, 1]``."]
    vectors: Annotated[Vectors, "What the server sent with the parameters, each ``[L, P]``."]
    memory: Annotated[Tensor | None, "The memory that each client kept from its last round, ``[L, M]``."] = None
    carry: Annotated[Mapping[str, Tensor], "The state kept within this round, one row per lane."] = field(
        default_factory=dict[str, Tensor]
    )
    gradient_at: Annotated[
        Callable[[Tensor], Tensor],
        "The gradient ``[L, P]`` of the same batch at other parameters ``[L, P]``, for which the objective "
        "moves the examples again; only in ``direction``, for a step with several :attr:`LocalStep.gradients`.",
    ] = _outside


@record
class Outcome:
    """The result of a client's round."""

    memory: Annotated[Tensor | None, "The memory that the client keeps until its next round, ``[L, M]``."] = None
    vectors: Annotated[Vectors, "The vectors to send besides the parameters, each ``[L, P]``."] = field(
        default_factory=dict[str, Tensor]
    )


class LocalStep(Part):
    """A rule for local steps, by default plain descent without memory or vectors: derive and override.

    Clients call begin, direction and end; the server calls check, initial_vectors, tell_reports and tell.
    """

    slot = "local"
    gradients: ClassVar[int] = 1
    """The number of gradients per step: the argument of :meth:`direction`, and the gradients that it requests."""
    sends: ClassVar[tuple[str, ...]] = ()
    """The names of the vectors that :meth:`end` sends."""
    reports: ClassVar[tuple[str, ...]] = ()
    """The names of the vectors that clients send with a loss before training."""

    def check(self, client_weights: ClientWeights) -> None:
        """Raise ValueError if the step cannot work with this rule for the client weights."""
        if self.reports and not client_weights.asks_first:
            raise ValueError(
                f"local={self} needs client weights that ask for losses before a round trains, not "
                f"client_weights={client_weights}: use wafl.ScaffPD(), or wafl.weights.primal_dual(), cvar(), kl() or "
                "term()"
            )

    def scalars(self) -> dict[str, float]:
        """Return the hyperparameters that may differ between lanes of one batched run."""
        return {}

    def initial_memory(self, params: Tensor) -> Tensor | None:
        """Return a client's memory before its first round, as one vector; None for a step without memory."""
        return None

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        """Return the carry before the first step, each tensor with one row per lane."""
        return {}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the direction that replaces the gradient ``[L, P]``, and the new carry.

        Finished lanes keep their carry.
        """
        return gradient, state.carry

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        """Return the memory and the vectors after the last step; ``steps [L, 1]`` is the number of steps per lane."""
        return Outcome(state.memory)

    def initial_vectors(self, params: Tensor) -> Vectors:
        """Return the server's vectors for this rule, which it sends with the parameters."""
        return {}

    def tell_reports(self, vectors: Vectors, replies: Replies, client_weights: Tensor) -> Vectors:
        """Return the server's vectors after the reports; ``client_weights`` follow from the losses."""
        return vectors

    def tell(self, vectors: Vectors, query: Query, replies: Replies, client_weights: Tensor) -> Vectors:
        """Return the server's vectors after a round; ``client_weights`` are the weights of the replying clients."""
        return vectors
