"""FedDyn's local steps; its server is in :mod:`wafl.servers.dynamic`.

Acar et al., "Federated learning based on dynamic regularization" (ICLR 2021), algorithm 1, where each client's problem
is not solved exactly but by its local steps.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, Tunable, frozen, maker
from wafl.parts.local_step import LocalState, LocalStep, Outcome


@frozen
class Dynamic(LocalStep):
    """Descend ``loss - <g_i, params> + alpha / 2 ||params - start||^2``, then ``g_i <- g_i - alpha (params - start)``.

    Each client keeps its own ``g_i``, which approaches the gradient of its loss at the optimum of all clients. Use it
    with :class:`wafl.servers.Dynamic`, as FedDyn does.
    """

    alpha: Annotated[
        float,
        Positive(),
        Tunable(30.0),
        "How strongly local models are pulled back to the server's, and how fast each client's correction changes.",
    ] = 0.1

    def scalars(self) -> dict[str, float]:
        return {"alpha": self.alpha}

    def initial_memory(self, params: Tensor) -> Tensor:
        return torch.zeros_like(params)

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        assert state.memory is not None
        return gradient - state.memory + self._pull(state), state.carry

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        assert state.memory is not None
        return Outcome(state.memory - self._pull(state))

    def _pull(self, state: LocalState) -> Tensor:
        return state.scalars["alpha"] * (state.params - state.start)


dynamic = maker(Dynamic)
