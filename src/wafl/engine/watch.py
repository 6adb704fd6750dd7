"""What is checked as training goes: finite numbers, and gamma against the concavity limit."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from wafl.adversaries import Wasserstein
from wafl.algorithms import Query, Replies, State
from wafl.errors import ConcavityWarning, DivergedError, RadiusWarning, UnboundedError
from wafl.methods import Method
from wafl.task import Task


def concavity_limit(task: Task, params: Tensor) -> float | None:
    """``L_zz / 2``: above it the inner problem with the squared l2 cost is concave. None where L_zz is unknown."""
    curvature = task.curvature(params[None])
    return None if curvature is None else float(curvature[0]) / 2.0


class Watch:
    """Follows one run; each warning comes once."""

    def __init__(self, method: Method, task: Task, names: tuple[str, ...]) -> None:
        self._adversary = method.adversary if isinstance(method.adversary, Wasserstein) else None
        self._task = task
        self._names = names
        self._warned: set[type[Warning]] = set()

    def check_replies(self, query: Query, replies: Replies) -> None:
        """Stop at the first NaN or infinity, with the round, the client and the likely cause."""
        finite = torch.isfinite(replies.loss)
        if replies.params is not None:
            finite &= torch.isfinite(replies.params).all(1)
        if bool(finite.all()):
            return
        client = replies.clients[int((~finite).nonzero()[0])]
        where = f"round {query.round}, {self._names[client]}"
        if self._adversary is not None and self._adversary.power == 1 and self._adversary.bounds is None:
            raise UnboundedError(
                f"{where}: with power=1 and gamma={query.scalars['gamma']:g} the supremum is infinite: "
                "raise gamma, add weight_decay, or give bounds=(low, high)"
            )
        raise DivergedError(f"{where}: the update is not finite; {self._likely_cause(query)}")

    def check_gamma(self, state: State) -> None:
        """Warn once when gamma is below the concavity limit of the current parameters."""
        adversary = self._adversary
        if adversary is None or adversary.norm != 2 or adversary.power != 2:
            return
        limit, gamma = concavity_limit(self._task, state.params), state.scalars["gamma"]
        if limit is None:
            return
        if gamma < limit:
            self._warn(
                ConcavityWarning,
                f"round {state.round}: gamma={gamma:.4g} is below the concavity limit {limit:.4g} of this model: "
                "raise gamma, or shrink the weights (weight_decay)",
            )
        elif adversary.strict and gamma <= limit:
            self._warn(
                RadiusWarning,
                f"round {state.round}: radius={adversary.radius:g} cannot be reached while gamma stays above the "
                f"concavity limit {limit:.4g}: ask for a smaller radius, add weight_decay, or leave strict out",
            )

    def _likely_cause(self, query: Query) -> str:
        rate = query.scalars["learning_rate"]
        limit = concavity_limit(self._task, query.params)
        gamma = query.scalars.get("gamma")
        if limit is not None and gamma is not None and gamma < limit:
            return f"gamma={gamma:g} is below the concavity limit {limit:.4g}: raise gamma or add weight_decay"
        return f"learning_rate={rate:g} is likely too large: lower it"

    def _warn(self, kind: type[Warning], message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(message, kind, stacklevel=4)
