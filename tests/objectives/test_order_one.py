"""The W_1 ball without bounds: what a linear model descends, against autograd and against a convex solver."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import wafl
from wafl.objectives import ObjectiveState, resilient, wasserstein
from wafl.objectives.learned_gamma import LEAST_EXCESS, next_excess
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

Array = npt.NDArray[Any]
DUALS: dict[float, Any] = {1: math.inf, 2: 2, math.inf: 1}
BREAST_CANCER = {0.05: 0.17886, 0.2: 0.34101, 0.5: 0.50721}
"""What dro 0.4.3 finds for the l2 ball of order 1, by radius."""


def drawn() -> tuple[Problem, Tensor, Tensor, ObjectiveState]:
    """Two models of four classes, and examples with unequal shares."""
    generator = torch.Generator().manual_seed(3)
    task = make_task(nn.Linear(5, 4).double())
    params = torch.randn(2, task.num_params, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 7, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (2, 7), generator=generator)
    share = torch.rand(2, 7, generator=generator, dtype=torch.float64)
    scalars = {"radius": torch.tensor([0.3, 1.5], dtype=torch.float64), "excess": torch.tensor([0.7, 0.0]).double()}
    return Problem(task, params), x, y, ObjectiveState(scalars, weight=share / share.sum(1, keepdim=True))


def dual_objective(weight: Tensor, bias: Tensor, x: Tensor, y: Tensor, share: Tensor, **ball: Any) -> Tensor:
    """``gamma radius + E max over k of loss(x, k) - gamma kappa 1(k != y)`` at ``gamma = L + excess``, as written."""
    order, kappa = DUALS[ball["norm"]], ball["label_cost"]
    apart = [torch.linalg.vector_norm(weight[j] - weight[k], ord=order) for j in range(4) for k in range(j)]
    gamma = torch.stack(apart).max() + ball["excess"]
    logs = (x @ weight.T + bias).log_softmax(-1)
    total = gamma * ball["radius"]
    for row, label, part in zip(logs, y.tolist(), share, strict=True):
        labels = [k for k in range(4) if k == label or math.isfinite(kappa)]
        total = total + part * torch.stack([-row[k] - (gamma * kappa if k != label else 0.0) for k in labels]).max()
    return total


@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("label_cost", [0.4, math.inf])
def test_what_is_descended_is_the_gradient_of_the_dual(norm: float, label_cost: float) -> None:
    problem, x, y, state = drawn()
    objective = wasserstein(radius=1.0, power=1, norm=norm, label_cost=label_cost, bounds=None)
    move = objective(problem, x, y, state)
    assert state.weight is not None
    gradient = move.descent(problem, state.weight)
    assert bool((move.y_adv != y).any()) == math.isfinite(label_cost)
    for lane in range(2):
        weight, bias = (part[lane].clone().requires_grad_() for part in problem.task.linear(problem.params) or ())
        numbers = {name: float(value[lane]) for name, value in state.scalars.items()}
        ball = {"norm": norm, "label_cost": label_cost, **numbers}
        value = dual_objective(weight, bias, x[lane], y[lane], state.weight[lane], **ball)
        wanted = torch.cat([part.flatten() for part in torch.autograd.grad(value, [weight, bias])])
        torch.testing.assert_close(gradient[lane], wanted, rtol=1e-10, atol=1e-12)
        gamma = objective.slope(Problem(problem.task, problem.params[lane : lane + 1])) + numbers["excess"]
        mean = float((state.weight[lane] * move.value[lane]).sum())
        assert gamma * numbers["radius"] + mean == pytest.approx(float(value.detach()), rel=1e-12)


def test_what_labels_leave_of_the_radius_goes_far_away() -> None:
    problem, x, y, state = drawn()
    assert state.weight is not None
    move = wasserstein(radius=1.0, power=1, label_cost=0.4, bounds=None)(problem, x, y, state)
    paid = (state.weight * move.cost).sum(1)
    labels = 0.4 * (state.weight * (move.y_adv != y)).sum(1)
    assert float(paid[0]) == pytest.approx(float(labels[0])), "above the slope, nothing goes far"
    assert float(paid[1]) == pytest.approx(1.5), "at the slope, the rest of the radius does"
    fixed = wasserstein(radius=1.0, power=1, bounds=None)(problem, x, y, ObjectiveState(weight=state.weight))
    torch.testing.assert_close((state.weight * fixed.cost).sum(1), torch.ones(2, dtype=torch.float64))


def test_a_ball_with_a_shape_is_a_round_one_on_reshaped_data() -> None:
    """``||A^-1 (x' - x)||`` with a diagonal A is the plain norm for features divided by it and weights multiplied."""
    problem, x, y, state = drawn()
    scale = torch.tensor([2.0, 0.5, 1.0, 3.0, 0.2], dtype=torch.float64)
    shaped = wasserstein(radius=1.0, power=1, bounds=None, cost_matrix=scale.numpy())
    gradient = shaped(problem, x, y, state).descent(problem, torch.full((2, 7), 1.0 / 7.0, dtype=torch.float64))
    wide = torch.cat([scale.repeat(4), torch.ones(4, dtype=torch.float64)])
    stretched = Problem(problem.task, problem.params * wide)
    plain = wasserstein(radius=1.0, power=1, bounds=None)
    wanted = plain(stretched, x / scale, y, state).descent(
        stretched, torch.full((2, 7), 1.0 / 7.0, dtype=torch.float64)
    )
    torch.testing.assert_close(gradient, wanted * wide)
    assert shaped.slope(problem) == pytest.approx(plain.slope(stretched))


def test_the_excess_settles_and_ends_at_zero_if_labels_leave_something() -> None:
    assert next_excess(1.0, -0.5, 2.0, cost=0.3, radius=0.3) == (1.0, -0.5)
    assert next_excess(1.0, -0.5, 2.0, cost=0.15, radius=0.3) == pytest.approx((math.exp(-0.3), -0.6)), "on and faster"
    assert next_excess(1.0, -0.5, 2.0, cost=0.45, radius=0.3) == pytest.approx((math.exp(0.125), 0.25)), "slowly back"
    assert next_excess(1.0, 1.0, 2.0, cost=math.inf, radius=0.3) == pytest.approx((math.e, 1.0))
    assert next_excess(1.5 * LEAST_EXCESS, -1.0, 1.0, cost=0.0, radius=0.3)[0] == 0.0
    assert next_excess(0.0, 1.0, 2.0, cost=0.6, radius=0.3)[0] == pytest.approx(2.0 * LEAST_EXCESS * math.e)


@pytest.mark.parametrize("label_cost", [0.4, math.inf])
def test_clients_report_the_mean_cost_of_their_steps_if_labels_move(label_cost: float) -> None:
    """Of four steps in one round; if labels are fixed, the cost of the first."""
    x, y = clouds()
    clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0)
    method = wafl.WAFL(radius=0.3, power=1, label_cost=label_cost, bounds=None)
    state = ObjectiveState({"excess": torch.tensor([1.0 if math.isfinite(label_cost) else 0.0])})
    task, objective = make_task(wafl.models.mlr(clients)), method.objective
    assert objective is not None

    params, costs = task.initial(), list[float]()
    for steps in range(1, 5):
        move = objective(Problem(task, params[None]), torch.tensor(x)[None].float(), torch.tensor(y)[None], state)
        costs.append(float(move.cost.mean()))
        run = wafl.fit(
            wafl.models.mlr(clients), clients, method,
            rounds=1, local_steps=steps, batch_size=None, learning_rate=2.0,
        )  # fmt: skip
        params = torch.cat([value.flatten() for value in run.params.values()])
        wanted = sum(costs) / steps if math.isfinite(label_cost) else costs[0]
        assert run.history[0].achieved_radius == pytest.approx(wanted, rel=1e-5)
    assert len(set(costs)) > 1 or math.isinf(label_cost)


def test_a_resilient_ball_keeps_what_goes_far_away() -> None:
    """At a high temperature it is WAFL's; labels that move are refused."""
    problem, x, y, state = drawn()
    assert state.weight is not None
    options: dict[str, Any] = {"radius": 1.0, "power": 1, "bounds": None}
    plain = wasserstein(**options)(problem, x, y, state).descent(problem, state.weight)
    gradient = resilient(**options, temperature=1e6)(problem, x, y, state).descent(problem, state.weight)
    torch.testing.assert_close(gradient, plain, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"label_cost=0.4 with power=1 .* power=2"):
        resilient(**options, label_cost=0.4)(problem, x, y, state)


# Whole trainings.


def breast_cancer() -> tuple[Array, Array]:
    """The 398 training examples of a 70/30 split, each feature standardized on them; labels 0 and 1."""
    x, y = load_breast_cancer(return_X_y=True)
    split: Any = train_test_split(x, y, test_size=0.3, random_state=0)
    x, _, y, _ = split
    return (x - x.mean(0)) / x.std(0), y


def clouds() -> tuple[Array, Array]:
    """Two clouds that overlap, in three dimensions."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 80)
    return rng.normal(size=(80, 3)) + (2 * y - 1)[:, None] * np.array([1.0, 0.5, 0.0]), y


def trained(x: Array, y: Array, learning_rate: Any, rounds: int, **options: Any) -> tuple[Array, float]:
    """The difference of the two classes' weights and biases, after full steps of two unequal clients."""
    cut = len(y) // 3
    clients = wafl.Federation.from_arrays([(x[:cut], y[:cut]), (x[cut:], y[cut:])], test_fraction=0.0)
    method = wafl.WAFL(power=1, bounds=None, **options)
    run = wafl.fit(
        wafl.models.mlr(clients), clients, method,
        rounds=rounds, local_steps=1, batch_size=None, learning_rate=learning_rate,
    )  # fmt: skip
    weight, bias = (value.double().numpy() for value in run.params.values())
    return weight[1] - weight[0], float(bias[1] - bias[0])


def worst_loss(w: Array, b: float, x: Array, y: Array, radius: float, norm: float, label_cost: float) -> float:
    """The dual's minimum over gamma: at the slope, or where a label begins to pay."""
    margin = (2 * y - 1) * (x @ w + b)
    clean, other = np.logaddexp(0.0, -margin), np.logaddexp(0.0, margin)
    slope = float(np.linalg.norm(w, DUALS[norm]))
    gammas = [slope, *(gamma for gamma in (other - clean) / label_cost if gamma > slope)]
    tolls = [0.0 if math.isinf(label_cost) else gamma * label_cost for gamma in gammas]
    moved = other if math.isfinite(label_cost) else clean
    return min(
        gamma * radius + float(np.maximum(clean, moved - toll).mean())
        for gamma, toll in zip(gammas, tolls, strict=True)
    )


@pytest.mark.parametrize(
    ("radius", "learning_rate", "rounds"),
    [(0.5, 0.3, 40), *(pytest.param(radius, 0.3, 200, marks=pytest.mark.slow) for radius in (0.05, 0.2))],
)
def test_training_reaches_the_optimum_that_another_library_finds(
    radius: float, learning_rate: float, rounds: int
) -> None:
    x, y = breast_cancer()
    w, b = trained(x, y, learning_rate, rounds, radius=radius)
    assert worst_loss(w, b, x, y, radius, 2, math.inf) == pytest.approx(BREAST_CANCER[radius], rel=1e-3)


@pytest.mark.filterwarnings("error")
def test_a_label_cost_is_trained_with_without_a_warning() -> None:
    trained(*clouds(), 0.3, 12, radius=0.05, label_cost=1.0)
