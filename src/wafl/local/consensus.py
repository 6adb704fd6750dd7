"""Local steps that agree by the alternating direction method of multipliers (ADMM), as in DRFL.

Bai, Wong, Qiao and Ho, "Distributionally robust federated learning: An ADMM algorithm" (2503.18436, 2025). Taken from
it is that clients, each with a ball of its own, agree by ADMM. Its steps, those of a linearized proximal ADMM for a
min-max-min problem, were not at hand: these are consensus ADMM as in section 7.1 of Boyd et al., "Distributed
optimization and statistical learning via the alternating direction method of multipliers" (2011), where a client's
problem is not solved to the end but by its local steps.
"""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from wafl.base.options import Positive, Tunable, frozen, maker
from wafl.local.control import CONTROL, ControlVariates
from wafl.parts.local_step import LocalState, Outcome


@frozen
class Consensus(ControlVariates):
    """Descend ``loss + <u_i, w - z> + coupling / 2 ||w - z||^2``, with a dual variable ``u_i`` of the client.

    After its steps ``u_i <- u_i + coupling (w_i - z)``, and then ``z <- sum_i lambda_i (w_i + u_i / coupling)``: ADMM
    for models ``w_i`` that are to agree. The model of the server is ``sum_i lambda_i w_i``, where clients start. It
    also keeps ``u = sum_i lambda_i u_i``, and z is its model plus ``u / coupling``. As ``-u_i`` takes the part of
    SCAFFOLD's control variate, it is sent and kept under that name. Clients that are not asked keep theirs.
    """

    coupling: Annotated[
        float,
        Positive(),
        Tunable(30.0),
        "How strongly the clients' models are tied to the common one, and how fast their dual variables change.",
    ] = 0.1

    def scalars(self) -> dict[str, float]:
        return {"coupling": self.coupling}

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        return {}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        assert state.memory is not None
        return gradient - state.memory + state.vectors[CONTROL] + self._pull(state), state.carry

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        assert state.memory is not None
        change = -state.vectors[CONTROL] - self._pull(state)
        return Outcome(state.memory + change, {CONTROL: change})

    def _pull(self, state: LocalState) -> Tensor:
        return state.scalars["coupling"] * (state.params - state.start)


consensus = maker(Consensus)
