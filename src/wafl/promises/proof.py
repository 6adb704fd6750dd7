"""How phi_gamma is bounded from above at gammas that are given: by a search if there is one, otherwise by L_zz."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wafl.base.errors import PreconditionError
from wafl.tasks.task import Task
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.certificates.network_bound import knows_margins
from wafl.theory.certificates.upper import report_for, setting_of
from wafl.theory.phi.linear_model import is_known

TOLERANCE = 0.01
"""How far a search may leave both sides of an example's phi_gamma apart."""


@dataclass(frozen=True)
class Proof:
    """Above ``limit`` phi_gamma is bounded: by a search if ``curvature`` is None, otherwise by that bound on L_zz."""

    norm: float
    curvature: float | None

    @classmethod
    def of(cls, task: Task, norm: float, curvature: float) -> Proof:
        """The tightest for a model whose L_zz is at most ``curvature``, which may be infinite."""
        linear = task.linear(task.initial()[None]) is not None
        searched = (linear and is_known(task.loss) and task.loss.logistic) or knows_margins(task)
        return cls(norm, None if searched else curvature)

    @property
    def limit(self) -> float:
        return 0.0 if self.curvature is None else self.curvature / 2.0

    def means(self, mixture: Mixture, gammas: Sequence[float]) -> list[list[float]]:
        """Each client's mean of an upper bound on phi_gamma, for each gamma."""
        for gamma in gammas:
            if not gamma > self.limit:
                raise PreconditionError(f"gamma={gamma:g} must exceed L_zz / 2 = {self.limit:.4g}")
        bend, tolerance = (math.inf, TOLERANCE) if self.curvature is None else (self.curvature, None)
        settings = [setting_of(gamma, bend, tolerance) for gamma in gammas]
        return mixture.answers(report_for(settings[0], self.norm), settings).value.tolist() if settings else []
