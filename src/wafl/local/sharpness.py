"""Local steps to flat minima: FedSAM.

Qu et al., "Generalized federated learning via sharpness aware minimization" (ICML 2022), algorithm 1; the step is that
of Foret et al., "Sharpness-aware minimization for efficiently improving generalization" (ICLR 2021).
"""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from wafl.base.options import NotNegative, Tunable, frozen, maker
from wafl.parts.local_step import LocalState, LocalStep


@frozen
class SAM(LocalStep):
    """Descend along the gradient at ``params + rho g / ||g||``, with g the gradient at ``params``, on the same batch.

    To first order the loss is highest there within ``rho``. A step takes two gradients, and so about twice the time.
    """

    rho: Annotated[
        float,
        NotNegative,
        Tunable(),
        "How far from the parameters the gradient is taken, in their l2 norm; 0 is plain descent.",
    ] = 0.05
    gradients = 2

    def scalars(self) -> dict[str, float]:
        return {"rho": self.rho}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        length = gradient.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return state.gradient_at(state.params + state.scalars["rho"] * gradient / length), state.carry


sam = maker(SAM)
