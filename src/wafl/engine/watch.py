"""What is checked while training: that numbers are finite, and gamma against the concavity limit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from wafl.adversaries import Adversary, Wasserstein
from wafl.algorithms import Query, Replies, State
from wafl.core.checks import finite_rows
from wafl.core.errors import ConcavityWarning, DivergedError, RadiusWarning, UnboundedError
from wafl.core.task import Task
from wafl.history import History
from wafl.methods import Method


def concavity_limit(adversary: Wasserstein, task: Task, params: Tensor) -> float | None:
    """The gamma above which the inner problem is concave; None if no gamma is known to be enough."""
    curvature = task.curvature(params[None])
    if curvature is None or adversary.norm != 2 or adversary.power != 2:
        return None
    return adversary.limit(float(curvature[0]), task.loss.quadratic)


def lowest_gamma(adversary: Adversary | None, task: Task, params: Tensor) -> float:
    """What a learned gamma must not fall below: what keeps targets finite and, if strict, the concavity limit."""
    if not isinstance(adversary, Wasserstein):
        return 0.0
    targets = 1.05 * (task.loss.quadratic or 0.0) / adversary.label_cost
    limit = concavity_limit(adversary, task, params) if adversary.strict else None
    return max(targets, limit or 0.0)


class Watch:
    """Watches one run; each warning is given once."""

    def __init__(self, method: Method, task: Task) -> None:
        self._adversary = method.adversary if isinstance(method.adversary, Wasserstein) else None
        self._task = task
        self._warned = False
        self._held: list[int] = []

    def check_replies(self, query: Query, replies: Replies, names: Sequence[str]) -> None:
        """Stop at the first NaN or infinity, with the round, the client and the likely cause."""
        finite = torch.isfinite(replies.loss)
        for vector in replies.vectors.values():
            finite &= finite_rows(vector)
        if bool(finite.all()):
            return
        client = replies.clients[int((~finite).nonzero()[0])]
        where = f"round {query.round}, {names[client]}"
        if self._adversary is not None and self._adversary.power == 1 and bool(replies.loss.isinf().any()):
            raise UnboundedError(
                f"{where}: with power=1 and gamma={query.scalars['gamma']:g} the supremum is infinite: "
                "raise gamma, add weight_decay, or give bounds=(low, high)"
            )
        raise DivergedError(f"{where}: the update is not finite; {self.likely_cause(query)}")

    def check_params(self, query: Query, state: State) -> None:
        """Stop if the server's own step gave NaN or infinity."""
        if not bool(finite_rows(state.params[None])):
            raise DivergedError(
                f"round {query.round}, server: its step is not finite; lower the server's learning rate"
            )

    def check_gamma(self, state: State) -> None:
        """Warn once when gamma is below the concavity limit of the current parameters."""
        if self._adversary is None:
            return
        limit, gamma = concavity_limit(self._adversary, self._task, state.params), state.scalars["gamma"]
        if limit is None:
            return
        if gamma == limit:  # strict holds it there
            self._held.append(state.round)
        if gamma < limit and not self._warned:
            self._warned = True
            warnings.warn(
                f"round {state.round}: gamma={gamma:.4g} is below the concavity limit {limit:.4g} of this model: "
                "raise gamma, or shrink the weights (weight_decay)",
                ConcavityWarning,
                stacklevel=5,
            )

    def check_radius(self, history: History) -> None:
        """Warn at the end if, in the second half of the rounds, strict held gamma so that the radius was missed."""
        adversary, recent = self._adversary, history[len(history) // 2 :]
        if adversary is None or adversary.radius is None or not recent:
            return
        if not any(at >= recent[0].round for at in self._held):
            return
        achieved = fmean(record.achieved_radius for record in recent)
        if achieved < 0.95 * adversary.radius:
            warnings.warn(
                f"radius={adversary.radius:g} cannot be reached while gamma stays above the concavity limit: from "
                f"round {recent[0].round} on it was {achieved:.4g}. Ask for a smaller radius, add weight_decay, or "
                "leave strict out",
                RadiusWarning,
                stacklevel=5,
            )

    def likely_cause(self, query: Query) -> str:
        """Why a run may have diverged in this query, and what to do about it."""
        rate = query.scalars["learning_rate"]
        limit = None if self._adversary is None else concavity_limit(self._adversary, self._task, query.params)
        gamma = query.scalars.get("gamma", 0.0)
        if limit is not None and gamma < limit:
            return f"gamma={gamma:g} is below the concavity limit {limit:.4g}: raise gamma or add weight_decay"
        return f"learning_rate={rate:g} is likely too large: lower it"
