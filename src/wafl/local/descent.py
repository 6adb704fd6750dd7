"""Take local steps along a gradient: plain, pulled to the server's model, to flat minima, or with FedDyn's correction.

Prox is FedProx's step. SAM: Qu et al., "Generalized federated learning via sharpness aware minimization" (ICML 2022),
algorithm 1, with the step of Foret et al., "Sharpness-aware minimization for efficiently improving generalization"
(ICLR 2021). Dynamic: Acar et al., "Federated learning based on dynamic regularization" (ICLR 2021), algorithm 1, where
local steps replace the exact solution of each client's problem.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import NotNegative, Positive, Tunable, frozen, maker
from wafl.parts.local_step import LocalState, LocalStep, Outcome


@dataclass(frozen=True)
class SGD(LocalStep):
    """A plain step along the gradient; momentum and weight decay belong to the schedule."""


@frozen
class Prox(LocalStep):
    """A step that descends ``loss + mu / 2 ||params - start||^2``, where ``start`` is the server's model."""

    mu: Annotated[
        float,
        NotNegative,
        Tunable(30.0),
        "The strength of the pull back toward the server's model; 0 is plain descent.",
    ] = 0.1

    def scalars(self) -> dict[str, float]:
        """Return mu."""
        return {"mu": self.mu}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the gradient with the pull toward the server's model."""
        return gradient + state.scalars["mu"] * (state.params - state.start), state.carry


@frozen
class SAM(LocalStep):
    """Descend along the gradient at ``params + rho g / ||g||``, with g the gradient at ``params``, on the same batch.

    To first order the loss is highest there within ``rho``. A step takes two gradients, and therefore about twice the
    time.
    """

    rho: Annotated[
        float,
        NotNegative,
        Tunable(),
        "The l2 distance from the parameters at which the gradient is computed; 0 is plain descent.",
    ] = 0.05
    gradients = 2

    def scalars(self) -> dict[str, float]:
        """Return rho."""
        return {"rho": self.rho}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the gradient at the sharpest point within ``rho``, to first order."""
        length = gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return state.gradient_at(state.params + state.scalars["rho"] * gradient / length), state.carry


@frozen
class Dynamic(LocalStep):
    """Descend ``loss - <g_i, params> + alpha / 2 ||params - start||^2``, then ``g_i <- g_i - alpha (params - start)``.

    Each client keeps its ``g_i``, which approaches the gradient of its loss at the optimum of all clients. Use it with
    :class:`wafl.servers.Dynamic`, as FedDyn does.
    """

    alpha: Annotated[
        float,
        Positive(),
        Tunable(30.0),
        "How strongly local models are pulled back to the server's, and how fast each client's correction changes.",
    ] = 0.1

    def scalars(self) -> dict[str, float]:
        """Return alpha."""
        return {"alpha": self.alpha}

    def initial_memory(self, params: Tensor) -> Tensor:
        """Return a correction of zeros."""
        return torch.zeros_like(params)

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the corrected gradient."""
        assert state.memory is not None
        return (gradient - state.memory).add_(self._pull(state)), state.carry

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        """Return the client's next correction."""
        assert state.memory is not None
        return Outcome(state.memory - self._pull(state))

    def _pull(self, state: LocalState) -> Tensor:
        return state.scalars["alpha"] * (state.params - state.start)


sgd = maker(SGD)
prox = maker(Prox)
sam = maker(SAM)
dynamic = maker(Dynamic)
