"""The worst distribution for a linear model, by the dual."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

Array = npt.NDArray[np.float64]


def by_the_dual(slope: float, x: Array, share: Array, radius: float) -> float:
    """The worst loss in one dimension: the minimum over gamma of ``gamma radius^2 + E[phi_gamma]``, which is convex."""
    moves = np.linspace(-40.0, 40.0, 16001)
    loss = np.logaddexp(0.0, -slope * (x[:, None] + moves))

    def dual(gamma: float) -> float:
        return gamma * radius**2 + float(share @ (loss - gamma * moves**2).max(1))

    return float(minimize_scalar(dual, bounds=(1e-3, 100.0), method="bounded", options={"xatol": 1e-6}).fun)
