"""SCAFFOLD: local steps corrected for how far a client's gradients are from those of all clients.

Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning" (ICML 2020), with option II for
the clients' control variates.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.options import maker
from wafl.parts.local_step import LocalState, LocalStep, Outcome
from wafl.parts.messages import Query, Replies, Vectors

CONTROL = "control"


@dataclass(frozen=True)
class ControlVariates(LocalStep):
    """Descend along ``gradient - c_i + c``.

    Option II of the paper, ``c_i <- c_i - c + (start - params) / (steps rate)``, is the mean of the gradients that the
    client met on its way. It is computed as such a mean, so momentum and clipping do not distort it. The server keeps
    ``c = sum_i lambda_i c_i``, so that the corrections cancel in the weighted mean; with equal weights that is the
    paper's ``c <- c + 1/m sum_i (change of c_i)``. If the weights are learned, a client counts with the weight it had
    when it took part.
    """

    sends = (CONTROL,)

    def initial_memory(self, params: Tensor) -> Tensor:
        return torch.zeros_like(params)

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        return {"total": torch.zeros_like(state.params)}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        assert state.memory is not None
        corrected = gradient - state.memory + state.vectors[CONTROL]
        return corrected, {"total": state.carry["total"] + gradient}

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        assert state.memory is not None
        control = state.carry["total"] / steps
        return Outcome(control, {CONTROL: control - state.memory})

    def initial_vectors(self, params: Tensor) -> Vectors:
        return {CONTROL: torch.zeros_like(params)}

    def tell(self, vectors: Vectors, query: Query, replies: Replies, client_weights: Tensor) -> Vectors:
        changes = replies.vectors[CONTROL]
        return {CONTROL: vectors[CONTROL] + client_weights.to(changes) @ changes}


control_variates = maker(ControlVariates)
