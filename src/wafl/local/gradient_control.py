"""Scaff-PD's local steps: corrected by the gradients of all clients at the model they start from.

Yu, Karimireddy, Ma and Jordan, "Scaff-PD: Communication efficient fair and robust federated learning" (2307.13381,
2023). Before a round trains, clients send their gradient with their loss; nothing is kept between rounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wafl.base.options import maker
from wafl.parts.local_step import LocalState, LocalStep
from wafl.parts.messages import GRADIENT, Replies, Vectors, weighted_mean

CONTROL = "control"


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


gradient_control = maker(GradientControl)
