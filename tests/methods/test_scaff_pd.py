"""Scaff-PD on quadratic games whose saddle point is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn

import wafl

CURVATURES, TARGETS, HEIGHTS = [1.0, 2.0, 0.7], [0.0, 1.0, -0.5], [0.3, 0.0, 0.5]
PROX = 8.0
"""Clients with the losses ``c^2 (w - t)^2 + h``, and the price ``PROX / 2 ||lambda - 1/3||^2``."""


def clients() -> wafl.Federation:
    pairs = [
        ([[c], [c]], [c * t + h**0.5, c * t - h**0.5]) for c, t, h in zip(CURVATURES, TARGETS, HEIGHTS, strict=True)
    ]
    return wafl.Federation.from_arrays(pairs, test_fraction=0)


def saddle() -> tuple[float, np.ndarray]:
    """The best weights are ``1/3 + (loss - mean loss) / PROX``; with these, the slope of the model is 0."""
    square, target, height = (np.array(values) for values in ([c * c for c in CURVATURES], TARGETS, HEIGHTS))

    def weights(w: float) -> np.ndarray:
        losses = square * (w - target) ** 2 + height
        return 1 / 3 + (losses - losses.mean()) / PROX

    w = float(brentq(lambda w: (2 * weights(w) * square * (w - target)).sum(), -0.5, 1.0, xtol=1e-14))  # pyright: ignore
    assert weights(w).min() > 0.01, "the saddle point lies inside the simplex"
    return w, weights(w)


def line() -> nn.Module:
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 2.0)
    return model


def test_scaff_pd_converges_to_the_saddle_point():
    run = wafl.fit(
        line(), clients(), wafl.ScaffPD(weights_step=0.5, prox=PROX), rounds=60, local_steps=4, batch_size=None,
        learning_rate=0.05, loss="squared_error",
    )  # fmt: skip
    w, weights = saddle()
    assert float(run.params["weight"]) == pytest.approx(w, abs=1e-6)
    assert run.client_weights.tolist() == pytest.approx(weights.tolist(), abs=1e-6)


def test_losses_are_extrapolated_from_the_round_before():
    rule = wafl.weights.primal_dual(0.1, prox=0.0, extrapolation=0.5)
    last = torch.tensor([1.0, 1.0, float("nan")], dtype=torch.float64)
    now = wafl.weights.Round(1, 0, 3, 3, 1, last_losses=last)
    weights = rule.learn(rule.initial([1] * 3), range(3), torch.tensor([2.0, 1.0, 1.5]), now)
    slopes = torch.tensor([2.5, 1.0, 1.5], dtype=torch.float64)  # a client without a past is not extrapolated
    torch.testing.assert_close(weights, 1 / 3 + 0.1 * (slopes - slopes.mean()))


def test_scaff_pd_refuses_a_smaller_cohort_and_its_local_step_other_weights():
    schedule = {"rounds": 1, "local_steps": 1, "learning_rate": 0.1, "loss": "squared_error"}
    with pytest.raises(ValueError, match="Scaff-PD asks all 3 clients each round: leave cohort=2 out; DRFA samples"):
        wafl.fit(line(), clients(), wafl.ScaffPD(), cohort=2, **schedule)
    for rule in (wafl.weights.uniform(), wafl.weights.snapshot()):
        method = wafl.FedAvg(client_weights=rule, local=wafl.local.gradient_control())
        with pytest.raises(ValueError, match="needs client weights that ask for losses before a round trains"):
            wafl.fit(line(), clients(), method, **schedule)


def test_one_corrected_step_on_all_examples_is_a_plain_step_along_the_gradient_of_all_clients():
    """With any weights that ask first, any objective and weight decay: the corrections cancel."""
    digits = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)
    model, rule = wafl.models.mlr(digits), wafl.weights.term(1.0)
    schedule = {"rounds": 2, "local_steps": 1, "batch_size": None, "learning_rate": 0.2, "weight_decay": 0.1}
    runs = [
        wafl.fit(model, digits, wafl.WAFL(gamma=1.0, client_weights=rule, local=local), **schedule)
        for local in (wafl.local.sgd(), wafl.local.gradient_control())
    ]
    for name, value in runs[0].params.items():
        torch.testing.assert_close(runs[1].params[name], value, rtol=0, atol=1e-6)
    assert float(runs[0].params["1.weight"].abs().max()) > 1e-3
