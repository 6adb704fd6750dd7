"""Training a regression by an l_inf radius so large that the best model is a constant.

The robust loss of squared errors is ``(rms r + radius ||w||_1)^2``, so ``w = 0`` is best once the radius reaches
``max_j |cov(x_j, y)| / std(y)``. The gamma in closed form, ``||w||_1^2 + rms r ||w||_1 / radius``, then follows a w
that steps back and forth around 0, and differs by factors from one round to the next; the radius is what was asked for.
"""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch

import wafl


@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
@pytest.mark.parametrize(("radius", "learning_rate"), [pytest.param(1.0, 0.005, marks=pytest.mark.slow), (6.0, 0.001)])
def test_a_radius_beyond_which_the_best_model_is_constant_is_reached(radius: float, learning_rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    y = x @ torch.tensor([0.5, -0.3, 0.2, 0.0]) + 0.5 * torch.randn(60, generator=generator)
    covariance = ((x - x.mean(0)) * (y - y.mean())[:, None]).mean(0)
    assert radius > float(covariance.abs().max() / y.std(correction=0)), "the best model is constant"
    clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0)
    run = wafl.fit(
        wafl.models.mlr(clients), clients, wafl.WAFL(radius=radius, norm=math.inf), loss="squared_error",
        rounds=60, local_steps=1, batch_size=None, learning_rate=learning_rate,
    )  # fmt: skip
    achieved = [record.achieved_radius or 0.0 for record in run.history[-20:]]
    assert fmean(achieved) == pytest.approx(radius, rel=0.15)
    (weight,) = [value for value in run.params.values() if value.ndim == 2]
    assert float(weight.abs().sum()) < 0.1
