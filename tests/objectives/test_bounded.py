"""PGM, FGSM and the attacks made of them stay within their ball and bounds, and do what a closed form says."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from tests.oracles import objective as oracles
from wafl import FGSM, PGD
from wafl.objectives import ProjectedAscent, pgm
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

NORMS = (2, math.inf)


def network(seed, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    for value in model.parameters():
        value.data = torch.randn(value.shape, generator=draw, dtype=dtype)
    return model, torch.rand(5, 6, generator=draw, dtype=dtype), torch.randint(3, (5,), generator=draw)


def losses(model, x, y):
    return nn.functional.cross_entropy(model(x).detach(), y, reduction="none")


def lengths(moved, x, norm):
    return torch.linalg.vector_norm((moved - x).flatten(1), ord=norm, dim=-1)


@oracles.settings(oracles.quick, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from(NORMS),
    st.sampled_from([0.0, 0.05, 0.5, 5.0]),
    st.sampled_from([None, (0.0, 1.0), (-0.25, 1.5)]),
    st.sampled_from([None, 0.01, 1.0]),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_moves_stay_within_epsilon_and_the_bounds(seed, norm, epsilon, bounds, step_size, steps, restarts):
    model, x, y = network(seed)
    attacks = [
        PGD(epsilon, step_size, steps, norm, random_start=restarts > 0, restarts=max(restarts, 1), bounds=bounds),
        FGSM(epsilon, norm, bounds),
    ]
    for attack in attacks:
        moved = attack(model, x, y, seed=seed)
        assert bool(torch.isfinite(moved).all())
        assert float(lengths(moved, x, norm).max()) <= epsilon * (1 + 1e-12) + 1e-15
        if bounds is not None:
            assert float(moved.min()) >= bounds[0]
            assert float(moved.max()) <= bounds[1]


@pytest.mark.parametrize("norm", NORMS)
def test_bounds_hold_to_the_last_bit_in_float32(norm):
    low, high = (float(np.float32(value)) for value in (0.1, 0.7))
    for seed in range(20):
        model, x, y = network(seed, torch.float32)
        moved = PGD(0.3, norm=norm, steps=5, bounds=(low, high))(model, x.clamp(low, high), y)
        assert float(moved.min()) >= low
        assert float(moved.max()) <= high


@pytest.mark.parametrize("norm", NORMS)
def test_examples_outside_the_bounds_are_refused(norm):
    """No move would lie both in the bounds and within epsilon."""
    model, x, y = network(0)
    with pytest.raises(ValueError, match="outside bounds"):
        PGD(0.1, norm=norm, bounds=(0.0, 1.0))(model, x + 0.5, y)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(3))
def test_the_attack_on_a_binary_linear_model_is_the_closed_form(norm, seed):
    """The best move is epsilon times the unit vector along w; the margin falls by ``epsilon ||w||_*``."""
    rng = np.random.default_rng(seed)
    weight, x, y, epsilon = rng.normal(size=(2, 5)), rng.normal(size=(8, 5)), np.arange(8) % 2, 0.3
    model = oracles.linear_model(weight)
    w = np.where(y[:, None] == 0, weight[1] - weight[0], weight[0] - weight[1])
    direction = np.sign(w) if norm == math.inf else w / np.linalg.norm(w, axis=1, keepdims=True)
    margin = -np.sum(w * x, 1) - epsilon * np.linalg.norm(w[0], ord=oracles.dual_order(norm))
    for attack in (FGSM(epsilon, norm), PGD(epsilon, norm=norm, steps=10), PGD(epsilon, 0.02, 20, norm)):
        moved = attack(model, x, y)
        np.testing.assert_allclose(moved, x + epsilon * direction, rtol=0, atol=1e-12)
        np.testing.assert_allclose(losses(model, moved, torch.from_numpy(y)), np.log1p(np.exp(-margin)), rtol=1e-10)


def test_within_bounds_the_linf_attack_is_the_clipped_closed_form():
    rng = np.random.default_rng(3)
    weight, x, y = rng.normal(size=(2, 5)), rng.uniform(size=(8, 5)), np.zeros(8, dtype=int)
    moved = PGD(0.3, steps=10, bounds=(0.0, 1.0))(oracles.linear_model(weight), x, y)
    np.testing.assert_allclose(moved, np.clip(x + 0.3 * np.sign(weight[1] - weight[0]), 0.0, 1.0), rtol=0, atol=1e-12)


def test_within_bounds_the_l2_attack_spends_nearly_its_whole_ball():
    """One coordinate cannot move: the other takes its share, except for what clipping after scaling gives up."""
    weight = np.array([[1.0, 1.0], [-1.0, -1.0]])
    moved = PGD(0.3, norm=2, steps=40, bounds=(0.0, 1.0))(oracles.linear_model(weight), np.array([[0.0, 0.5]]), [0])
    np.testing.assert_allclose(moved, [[0.0, 0.2]], rtol=0, atol=5e-4)


@pytest.mark.parametrize("norm", NORMS)
def test_each_example_keeps_the_best_of_its_restarts(norm):
    """``(x - y)^2`` on an interval is largest at the end away from y; about half of the starts climb to the other."""
    model = oracles.linear_model(np.ones((1, 1)))
    x, y = np.zeros((60, 1)), np.full(60, 0.05)
    once, often = (
        PGD(1.0, 0.1, 30, norm, random_start=True, restarts=restarts)(model, x, y, loss="squared_error")
        for restarts in (1, 20)
    )
    assert once.abs().flatten().tolist() == pytest.approx([1.0] * 60)
    assert 15 < int((once < 0).sum()) < 45
    assert often.flatten().tolist() == pytest.approx([-1.0] * 60)


@pytest.mark.parametrize("norm", NORMS)
def test_random_starts_are_uniform_in_the_ball(norm):
    """In d dimensions the share of draws within radius t is ``t^d``."""
    objective = ProjectedAscent(2.0, norm, step_size=1e-12, steps=1, random_start=True)
    task = make_task(nn.Linear(3, 2).double())
    start = objective(
        Problem(task, task.initial()[None]), torch.zeros(1, 4000, 3).double(), torch.zeros(1, 4000).long()
    )
    levels = (torch.linalg.vector_norm(start.x_adv[0], ord=norm, dim=-1) / 2.0) ** 3
    assert float(levels.max()) <= 1.0
    assert stats.kstest(levels.numpy(), "uniform").pvalue > 1e-3
    assert float(start.x_adv.mean((0, 1)).abs().max()) < 0.1


@pytest.mark.parametrize("norm", NORMS)
def test_a_zero_gradient_moves_nothing(norm):
    model = oracles.linear_model(np.zeros((2, 3)))
    x = np.ones((2, 3))
    for attack in (FGSM(0.3, norm), PGD(0.3, norm=norm)):
        assert np.array_equal(attack(model, x, [0, 1]), x)
    moved = PGD(0.3, norm=norm, random_start=True)(model, x, [0, 1])
    assert bool(torch.isfinite(moved).all())


def test_value_and_cost_are_those_of_the_moved_example():
    model, x, y = network(2)
    task = make_task(model)
    for norm in NORMS:
        move = pgm(epsilon=0.3, norm=norm, steps=4)(Problem(task, task.initial()[None]), x[None], y[None])
        torch.testing.assert_close(move.value[0], losses(model, move.x_adv[0], y))
        torch.testing.assert_close(move.cost[0], lengths(move.x_adv[0], x, norm) ** 2)
        assert torch.equal(move.y_adv[0], y)
