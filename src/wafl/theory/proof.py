"""How phi_gamma is bounded from above at gammas that are given: by the curvature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wafl.core.errors import PreconditionError
from wafl.theory.mixture import Mixture
from wafl.theory.upper import UpperBound


@dataclass(frozen=True)
class Proof:
    """For a model with a bound on L_zz: the inner problem is concave, or nearly so, if ``2 gamma`` exceeds it."""

    norm: float
    curvature: float

    def means(self, mixture: Mixture, gammas: Sequence[float]) -> list[list[float]]:
        """Each client's mean of an upper bound on phi_gamma, for each gamma."""
        for gamma in gammas:
            if not 2.0 * gamma > self.curvature:
                raise PreconditionError(f"gamma={gamma:g} must exceed L_zz / 2 = {self.curvature / 2.0:.4g}")
        settings = [{"gamma": gamma, "curvature": self.curvature} for gamma in gammas]
        return mixture.answers(UpperBound(self.norm), settings).value.tolist() if settings else []
