"""The outlier-resilient ball: weights against a solver, gradients against autograd, and garbage losing weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import wafl
from tests.objectives.networks import MODELS, by_autograd, drawn
from wafl.objectives import Wasserstein, resilient
from wafl.objectives.ball.relatives import best_explained

BALL = {"gamma": 3.0, "steps": 50, "tolerance": 0.0, "bounds": None}


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # old versions of scipy clip, and warn
@pytest.mark.parametrize("temperature", [0.2, 1.0, 7.0])
def test_the_weights_are_those_of_a_solver(temperature: float) -> None:
    losses, share = np.array([0.3, 1.4, 0.1, 5.0]), np.array([0.1, 0.4, 0.2, 0.3])

    def objective(w: np.ndarray) -> float:
        return float(w @ losses + temperature * (w * np.log(np.maximum(w, 1e-300) / share)).sum())

    solution = minimize(
        objective, share, bounds=[(1e-12, 1)] * 4, constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    padded = torch.tensor([[*losses, np.inf]]), torch.tensor([[*share, 0.0]])
    value, factor = best_explained(*padded, torch.tensor([[temperature]], dtype=torch.float64))
    assert float(value) == pytest.approx(solution.fun, abs=1e-7)
    np.testing.assert_allclose(factor[0, :4].numpy() * share, solution.x, atol=1e-4)
    assert float(factor[0, 4]) == 0.0, "padding never counts"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"norm": float("inf")}])
def test_it_descends_the_soft_minimum_of_the_robust_losses(name: str, options: dict[str, float]) -> None:
    problem, x, y, state = drawn(MODELS[name]())
    plain = Wasserstein(**BALL, **options)(problem, x, y, state)
    move = resilient(**BALL, **options, temperature=0.7)(problem, x, y, state)
    share, cost = state.weight, plain.cost
    assert share is not None

    def objective(outputs: object, lane: int) -> Tensor:
        losses = nn.functional.cross_entropy(outputs(plain.x_adv[lane]), y[lane], reduction="none")  # type: ignore[operator]
        robust = losses - 3.0 * cost[lane]
        return -0.7 * (share[lane] * torch.exp(-robust / 0.7)).sum().log()

    torch.testing.assert_close(move.descent(problem, share), by_autograd(problem, objective), rtol=1e-9, atol=1e-10)
    wanted = torch.stack([objective(lambda z, p=p: problem.task.call(p, z), i) for i, p in enumerate(problem.params)])
    torch.testing.assert_close((share * move.value).sum(1), wanted)


def test_at_a_high_temperature_it_is_wafl() -> None:
    problem, x, y, state = drawn(MODELS["linear"]())
    move, plain = (kind(problem, x, y, state) for kind in (resilient(**BALL, temperature=1e6), Wasserstein(**BALL)))
    assert state.weight is not None
    wanted = plain.descent(problem, state.weight)
    torch.testing.assert_close(move.descent(problem, state.weight), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(move.cost, plain.cost, rtol=1e-5, atol=1e-6)


def test_at_a_layer_examples_are_weighed_once() -> None:
    problem, x, y, state = drawn(MODELS["layers"]())
    move = resilient(gamma=3.0, space="1", temperature=0.5)(problem, x, y, state)
    plain = Wasserstein(gamma=3.0, space="1")(problem, x, y, state)
    assert state.weight is not None
    value, _ = best_explained(plain.value, state.weight, torch.full((2, 1), 0.5, dtype=torch.float64))
    torch.testing.assert_close(move.value[:, :1], value)
    assert torch.isfinite(move.descent(problem, state.weight)).all()


def test_without_a_temperature_the_error_names_the_method_to_use() -> None:
    with pytest.raises(ValueError, match=r"temperature=0 must be positive and finite; to leave nothing out use WAFL"):
        wafl.ResilientWAFL(temperature=0)
