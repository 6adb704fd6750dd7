"""A ball with a cost matrix is a round ball in another space: of the model ``u -> model(A u)``, at ``u = A^-1 x``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.objectives.networks import FEATURES, MODELS, drawn
from wafl.objectives import Wasserstein, client_cost_matrix
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task

GENERATOR = torch.Generator().manual_seed(5)
MATRIX = torch.eye(FEATURES, dtype=torch.float64) + 0.4 * torch.randn(
    FEATURES, FEATURES, generator=GENERATOR, dtype=torch.float64
)
BALL: dict[str, Any] = {"gamma": 3.0, "steps": 60, "bounds": None}
SCHEDULE: dict[str, Any] = {"rounds": 2, "local_steps": 2, "batch_size": 8, "learning_rate": 0.2}


class Stretched(nn.Module):
    """``u -> model(A u)``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, u: Tensor) -> Tensor:
        return self.model(u @ MATRIX.T)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"norm": math.inf}, {"norm": 1}, {"label_cost": 0.3}])
def test_the_move_is_that_of_a_round_ball_around_the_stretched_model(name: str, options: dict[str, Any]) -> None:
    model = MODELS[name]()
    problem, x, y, state = drawn(model)
    stretched: Task = make_task(Stretched(model).double(), "cross_entropy")
    plain = Wasserstein(**BALL, **options)(
        Problem(stretched, problem.params), torch.linalg.solve(MATRIX, x.mT).mT.contiguous(), y, state
    )
    move = Wasserstein(**BALL, **options, cost_matrix=MATRIX.numpy())(problem, x, y, state)
    torch.testing.assert_close(move.x_adv, plain.x_adv @ MATRIX.T, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(move.value, plain.value, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(move.cost, plain.cost, rtol=1e-2, atol=1e-3)
    assert torch.equal(move.y_adv, plain.y_adv)
    assert state.weight is not None
    wanted = problem.descent(move.x_adv, move.y_adv, state.weight)
    torch.testing.assert_close(move.descent(problem, state.weight), wanted, rtol=1e-9, atol=1e-10)


def digits() -> wafl.Federation:
    return wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)


def weights(run: wafl.Run) -> Tensor:
    return run.params["1.weight"]


def test_training_by_radius_keeps_to_the_radius_in_the_shape() -> None:
    clients = digits()
    method = wafl.WAFL(radius=0.5, cost_matrix="clients")
    run = wafl.fit(wafl.models.mlr(clients), clients, method, rounds=12, local_steps=2, learning_rate=0.2)
    assert run.history[-1].achieved_radius == pytest.approx(0.5, rel=0.2)
    assert "CostMatrix(64 features" in run.settings["method"]["objective"]["cost_matrix"]


def test_a_sweep_gives_the_runs_one_by_one_and_the_shape_of_clients_is_that_of_their_class_means() -> None:
    clients = digits()
    model, train = wafl.models.mlr(clients), clients.train
    owner = torch.repeat_interleave(torch.arange(4), train.num_examples)
    between = client_cost_matrix(train.x, train.y, owner)
    first, second = wafl.sweep(model, clients, wafl.WAFL(gamma=1.0), {"cost_matrix": ["clients", None]}, **SCHEDULE)
    given = wafl.fit(model, clients, wafl.WAFL(gamma=1.0, cost_matrix=between), **SCHEDULE)
    assert torch.equal(weights(first), weights(given))
    assert torch.equal(weights(second), weights(wafl.fit(model, clients, wafl.WAFL(gamma=1.0), **SCHEDULE)))
    assert not torch.equal(weights(first), weights(second))


def test_the_shape_of_clients_is_that_of_a_slow_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y, owner = (torch.randint(high, (40,), generator=generator) for high in (2, 5))
    x[:, 0] += 3.0 * owner  # clients differ along the first feature
    between = np.zeros((3, 3))
    for label in range(2):
        center = x[y == label].mean(0).numpy()
        for client in range(5):
            rows = x[(y == label) & (owner == client)]
            if len(rows):
                gap = rows.mean(0).numpy() - center
                between += len(rows) / 40 * np.outer(gap, gap)
    wanted = 0.9 * between / (np.trace(between) / 3) + 0.1 * np.eye(3)
    matrix = client_cost_matrix(x, y, owner).matrix.numpy()
    np.testing.assert_allclose(matrix @ matrix.T, wanted, rtol=1e-9, atol=1e-12)
    assert np.trace(wanted) == pytest.approx(3.0), "a move costs on average what it costs in a round ball"
    assert wanted[0, 0] > 10 * wanted[1, 1]


def test_a_shape_at_a_layer_is_that_of_its_outputs() -> None:
    problem, x, y, state = drawn(MODELS["layers"]())
    plain = Wasserstein(gamma=3.0 / 4.0, space="1")(problem, x, y, state)
    move = Wasserstein(gamma=3.0, space="1", cost_matrix=[2.0] * 7)(problem, x, y, state)
    torch.testing.assert_close(move.x_adv, plain.x_adv, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cost_matrix": "round"},
            r"cost_matrix='round' must be 'clients', a square matrix, or one number per feature",
        ),
        ({"cost_matrix": [[1.0, 2.0]]}, r"cost_matrix has the shape \(1, 2\): it must be 'clients'"),
        ({"cost_matrix": ["a"]}, "cost_matrix must be 'clients', a square matrix"),
        ({"cost_matrix": [1.0, 0.0]}, "cost_matrix holds 0: how far a feature may move must be positive"),
        ({"cost_matrix": [[1.0, 1.0], [1.0, 1.0]]}, "cost_matrix is singular"),
        ({"cost_matrix": [1.0, math.inf]}, "cost_matrix holds NaN or infinity"),
        ({"cost_matrix": [1.0], "bounds": (0, 1)}, "are for a round ball"),
    ],
)
def test_a_wrong_shape_is_refused_with_what_it_must_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wafl.WAFL(gamma=1.0, **options)


def test_a_shape_for_other_features_is_refused_before_any_work() -> None:
    clients = digits()
    with pytest.raises(ValueError, match="cost_matrix is for 3 features, and an example has 64"):
        wafl.fit(wafl.models.mlr(clients), clients, wafl.WAFL(cost_matrix=[1.0] * 3), **SCHEDULE)


def test_clients_that_do_not_differ_have_no_shape() -> None:
    x, y = torch.ones(6, 2), torch.tensor([0, 1] * 3)
    with pytest.raises(ValueError, match="the classes have the same means at all clients"):
        client_cost_matrix(x, y, torch.tensor([0, 0, 1, 1, 2, 2]))


def test_without_clients_the_shape_must_be_given() -> None:
    problem, x, y, _ = drawn(MODELS["linear"]())
    with pytest.raises(ValueError, match="cost_matrix='clients' needs clients, and there are none here"):
        Wasserstein(gamma=1.0, cost_matrix="clients")(problem, x, y)
