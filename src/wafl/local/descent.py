"""Local steps along the gradient: plain, as in Algorithm 1, or held near the server's model, as in FedProx."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from wafl.base.options import NotNegative, Tunable, frozen, maker
from wafl.parts.local_step import LocalState, LocalStep


@dataclass(frozen=True)
class SGD(LocalStep):
    """Descend along the gradient; momentum and weight decay belong to the schedule."""


@frozen
class Prox(LocalStep):
    """Descend ``loss + mu / 2 ||params - start||^2``, where ``start`` is what the server sent."""

    mu: Annotated[
        float,
        NotNegative,
        Tunable(30.0),
        "How strongly local models are pulled back to the server's; 0 is plain descent.",
    ] = 0.1

    def scalars(self) -> dict[str, float]:
        return {"mu": self.mu}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        return gradient + state.scalars["mu"] * (state.params - state.start), state.carry


sgd = maker(SGD)
prox = maker(Prox)
