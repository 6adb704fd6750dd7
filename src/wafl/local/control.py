"""Local steps corrected for how far a client's gradients are from those of all clients: SCAFFOLD and Scaff-PD.

SCAFFOLD has the paper's option II for the clients' control variates. In Scaff-PD, clients send their gradient with
their loss before a round trains, and nothing is kept between rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.options import maker
from wafl.parts.local_step import LocalState, LocalStep, Outcome
from wafl.parts.messages import GRADIENT, Query, Replies, Vectors, weighted_mean

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


@dataclass(frozen=True)
class GradientControl(LocalStep):
    """Descend along ``gradient - c_i + c``.

    Here ``c = sum_i lambda_i gradient_i`` is the gradient of all clients at the model that they start from, on all
    their examples, and ``c_i`` that of the client's own first step: with full batches, its own gradient there. It needs
    client weights that ask for losses before a round trains, such as :func:`wafl.weights.primal_dual`.
    """

    reports = (GRADIENT,)

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        return {"own": torch.zeros_like(state.params), "begun": torch.zeros_like(state.params[:, :1])}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        own = torch.where(state.carry["begun"] > 0, state.carry["own"], gradient)
        begun = torch.ones_like(state.carry["begun"])
        return gradient - own + state.vectors[CONTROL], {"own": own, "begun": begun}

    def initial_vectors(self, params: Tensor) -> Vectors:
        return {CONTROL: torch.zeros_like(params)}

    def tell_reports(self, vectors: Vectors, replies: Replies, client_weights: Tensor) -> Vectors:
        return {CONTROL: weighted_mean(client_weights, replies.vectors[GRADIENT])}


control_variates = maker(ControlVariates)
gradient_control = maker(GradientControl)
