"""Correct local steps for the difference between a client's gradient and the mean gradient: SCAFFOLD, Scaff-PD, ADMM.

SCAFFOLD uses the paper's option II for the clients' control variates. In Scaff-PD, clients send their gradient with
their loss before a round trains, and keep nothing between rounds.

Consensus is for DRFL: Bai, Wong, Qiao and Ho, "Distributionally robust federated learning: An ADMM algorithm"
(2503.18436, 2025). From this paper comes the idea that clients, each with a ball of its data, agree by the alternating
direction method of multipliers (ADMM). The paper's steps, a linearized proximal ADMM for a min-max-min problem, were
not available to us. The steps here are consensus ADMM, but a client takes its local steps instead of solving its
problem exactly. See section 7.1 of Boyd et al., "Distributed optimization and statistical learning via the alternating
direction method of multipliers" (2011).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, Tunable, frozen, maker
from wafl.parts.local_step import LocalState, LocalStep, Outcome
from wafl.parts.messages import GRADIENT, Query, Replies, Vectors, weighted_mean

CONTROL = "control"


@dataclass(frozen=True)
class ControlVariates(LocalStep):
    """Descend along ``gradient - c_i + c``.

    Option II of the paper, ``c_i <- c_i - c + (start - params) / (steps rate)``, is the mean of the client's gradients
    in the round. It is computed as such a mean, so momentum and clipping do not distort it. The server keeps ``c =
    sum_i lambda_i c_i``, so that the corrections cancel in the weighted mean; with equal weights that is the paper's
    ``c <- c + 1/m sum_i (change of c_i)``. If the weights are learned, a client counts with its weight in the round
    when it took part.
    """

    sends = (CONTROL,)

    def initial_memory(self, params: Tensor) -> Tensor:
        """Return a control variate of zeros."""
        return torch.zeros_like(params)

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        """Return the sum of gradients before the first step, 0."""
        return {"total": torch.zeros_like(state.params)}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the corrected gradient, and the sum of gradients so far."""
        assert state.memory is not None
        corrected = (gradient - state.memory).add_(state.vectors[CONTROL])
        return corrected, {"total": state.carry["total"] + gradient}

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        """Return the client's new control variate and its change."""
        assert state.memory is not None
        control = state.carry["total"] / steps
        return Outcome(control, {CONTROL: control - state.memory})

    def initial_vectors(self, params: Tensor) -> Vectors:
        """Return the server's control variate before the first round, zeros."""
        return {CONTROL: torch.zeros_like(params)}

    def tell(self, vectors: Vectors, query: Query, replies: Replies, client_weights: Tensor) -> Vectors:
        """Add the weighted changes of the clients' control variates to the server's."""
        changes = replies.vectors[CONTROL]
        return {CONTROL: vectors[CONTROL] + client_weights.to(changes) @ changes}


@dataclass(frozen=True)
class GradientControl(LocalStep):
    """Descend along ``gradient - c_i + c``.

    Here ``c = sum_i lambda_i gradient_i`` is the gradient of all clients at the round's first model, on all their
    examples. ``c_i`` is the gradient of the client's first step; with full batches, this is the client's term of the
    sum. The client weights must request losses before a round trains, such as :func:`wafl.weights.primal_dual`.
    """

    reports = (GRADIENT,)

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        """Return the gradient of the first step, still unknown."""
        return {"first": torch.zeros_like(state.params), "begun": torch.zeros_like(state.params[:, :1])}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the corrected gradient, and the gradient of the first step."""
        first = torch.where(state.carry["begun"] > 0, state.carry["first"], gradient)
        begun = torch.ones_like(state.carry["begun"])
        return gradient - first + state.vectors[CONTROL], {"first": first, "begun": begun}

    def initial_vectors(self, params: Tensor) -> Vectors:
        """Return the mean gradient before the first round, zeros."""
        return {CONTROL: torch.zeros_like(params)}

    def tell_reports(self, vectors: Vectors, replies: Replies, client_weights: Tensor) -> Vectors:
        """Return the weighted mean of the gradients that clients report before they train."""
        return {CONTROL: weighted_mean(client_weights, replies.vectors[GRADIENT])}


@frozen
class Consensus(ControlVariates):
    """Descend ``loss + <u_i, w - z> + coupling / 2 ||w - z||^2``, with the client's dual variable ``u_i``.

    After its steps ``u_i <- u_i + coupling (w_i - z)``, and then ``z <- sum_i lambda_i (w_i + u_i / coupling)``: ADMM
    for models ``w_i`` that should agree. The server's model is ``sum_i lambda_i w_i``, where clients start. The server
    also keeps ``u = sum_i lambda_i u_i``, and z is its model plus ``u / coupling``. Since ``-u_i`` has the role of
    SCAFFOLD's control variate, it is sent and stored under that name. Clients outside the cohort keep their variables.
    """

    coupling: Annotated[
        float,
        Positive(),
        Tunable(30.0),
        "The strength of the tie between the clients' models and the common model, and the rate of the dual variables.",
    ] = 0.1

    def scalars(self) -> dict[str, float]:
        """Return the coupling."""
        return {"coupling": self.coupling}

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        """Return nothing, since the steps carry no state."""
        return {}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the gradient of the augmented objective."""
        assert state.memory is not None
        corrected = (gradient - state.memory).add_(state.vectors[CONTROL])
        return corrected.add_(self._pull(state)), state.carry

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        """Return the client's new dual variable and its change."""
        assert state.memory is not None
        change = -state.vectors[CONTROL] - self._pull(state)
        return Outcome(state.memory + change, {CONTROL: change})

    def _pull(self, state: LocalState) -> Tensor:
        return state.scalars["coupling"] * (state.params - state.start)


control_variates = maker(ControlVariates)
gradient_control = maker(GradientControl)
consensus = maker(Consensus)
