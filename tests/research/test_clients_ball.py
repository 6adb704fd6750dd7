"""Linear models of research/clients_ball against other libraries, closed forms and the package itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

import wafl
from research.clients_ball import objectives as of
from research.clients_ball.solver import PRECISION, solve, temperature

ROOT = np.array([[1.5, 0.2, 0.0], [0.2, 0.7, 0.1], [0.0, 0.1, 0.4]])


def vowels(examples: int = 240, clients: int = 6) -> of.Examples:
    draws = np.random.default_rng(0)
    centers, owner = 1.5 * draws.standard_normal((4, 3)), np.arange(examples) % clients
    y = draws.integers(0, 4, examples)
    offsets = draws.standard_normal((clients, 3)) * [1.0, 0.3, 0.1]
    return of.Examples(centers[y] + offsets[owner] + draws.standard_normal((examples, 3)), y, owner, 4)


OBJECTIVES = {
    "decay": lambda data: of.decayed(of.cross_entropy(data), 0.3),
    "decay in a metric": lambda data: of.decayed(of.cross_entropy(data), 0.3, ROOT),
    "order 1": lambda data: of.ball_of_order_one(data, 0.3, ROOT),
    "order 2, small": lambda data: of.ball_of_order_two(data, 0.05, ROOT),
    "order 2, large": lambda data: of.ball_of_order_two(data, 1.0, ROOT),
    "random moves": lambda data: of.random_moves(data, 0.5, ROOT),
    "GroupDRO": lambda data: of.group_dro(data, 3.0),
    "IRM": lambda data: of.invariant_risk(data, 5.0),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_match_finite_differences(name: str) -> None:
    objective, draws = OBJECTIVES[name](vowels()), np.random.default_rng(1)
    weights, direction = draws.standard_normal((2, 4, 4))
    slope = (objective(weights + 1e-5 * direction)[0] - objective(weights - 1e-5 * direction)[0]) / 2e-5
    assert np.sum(objective(weights)[1] * direction) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_solver_reaches_its_precision(name: str) -> None:
    data = vowels()
    assert solve(OBJECTIVES[name](data), data).precision <= PRECISION


def test_weight_decay_matches_scikit_learn() -> None:
    data = vowels()
    mine = solve(of.decayed(of.cross_entropy(data), 0.02), data).weights
    theirs = LogisticRegression(C=1 / (0.02 * len(data.y)), tol=1e-10, max_iter=5000).fit(data.x, data.y)
    np.testing.assert_allclose(mine[:, :-1], theirs.coef_, atol=1e-5)


def test_decay_in_a_metric_is_decay_of_transformed_features() -> None:
    data = vowels()
    moved = of.Examples(data.x @ np.linalg.inv(ROOT).T, data.y, data.owner, 4)
    mine = solve(of.decayed(of.cross_entropy(data), 0.1, ROOT), data).weights
    other = solve(of.decayed(of.cross_entropy(moved), 0.1), moved).weights
    np.testing.assert_allclose(mine[:, :-1] @ ROOT, other[:, :-1], atol=1e-4)


@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_the_ball_of_order_two_is_the_dual_of_moved_examples(radius: float) -> None:
    data = vowels(6, 3)
    weights = 0.5 * np.random.default_rng(2).standard_normal((4, 4))
    least = of.MARGIN * of.diameter(weights, ROOT)[0] ** 2 / 8.0

    def surrogate(x: of.Array, label: int, gamma: float) -> float:
        def worth(v: of.Array) -> float:
            return log_softmax(weights @ np.append(x + ROOT @ v, 1.0))[label] + gamma * float(v @ v)

        return -minimize(worth, np.zeros(3), tol=1e-10).fun

    def bound(log: float) -> float:
        gamma = least + np.exp(log)
        return gamma * radius**2 + np.mean([surrogate(x, y, gamma) for x, y in zip(data.x, data.y, strict=True)])

    best = min(bound(log) for log in np.linspace(-4.0, 2.0, 13))
    assert of.ball_of_order_two(data, radius, ROOT)(weights)[0] == pytest.approx(best, rel=5e-3)


@pytest.mark.parametrize(("power", "ball"), [(1, of.ball_of_order_one), (2, of.ball_of_order_two)])
def test_the_optimum_is_that_of_wafl(power: int, ball: Callable[..., of.Objective]) -> None:
    data, radius = vowels(), 0.15
    clients = wafl.Federation.from_arrays(
        [(data.x[data.owner == i].astype(np.float32), data.y[data.owner == i]) for i in range(data.clients)],
        test_fraction=0.0,
    )
    ball_of: dict[str, Any] = {
        "radius": radius,
        "power": power,
        "cost_matrix": ROOT,
        "bounds": None,
        "server": wafl.servers.momentum(),
    }
    method = wafl.WAFL(**ball_of)
    steps: dict[str, Any] = {
        "rounds": 200,
        "local_steps": 1,
        "batch_size": None,
        "learning_rate": lambda part: 0.3 / (1 + part / 30),
    }
    run = wafl.fit(wafl.models.mlr(clients), clients, method, **steps)
    layer = next(each for each in run.model.modules() if isinstance(each, torch.nn.Linear))
    trained = np.hstack([layer.weight.detach().numpy(), layer.bias.detach().numpy()[:, None]])
    objective = ball(data, radius, ROOT)
    best = objective(solve(objective, data).weights)[0]
    assert best - 1e-6 <= objective(trained)[0] <= best + 2e-3


def test_group_dro_approaches_the_worst_client() -> None:
    data = vowels()
    worst = [
        np.bincount(data.owner, data.losses(data.logits(solve(of.group_dro(data, size), data).weights))).max() / 40
        for size in (0.01, 100.0)
    ]
    assert worst[1] < worst[0] - 0.01


def test_a_temperature_finds_the_scale_of_logits() -> None:
    draws = np.random.default_rng(3)
    logits = 2.0 * draws.standard_normal((20_000, 4))
    labels = (logits + draws.gumbel(size=logits.shape)).argmax(1)
    assert temperature(3.0 * logits, labels) == pytest.approx(3.0, rel=0.05)
