"""The linear maximizer, the heart of the ascent, against closed forms and a general solver."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import wafl
from tests.oracles import objective as oracles
from wafl.objectives.ball.ascent import Room, linear_maximizer
from wafl.objectives.ball.wasserstein import wasserstein
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

NORMS = (1, 2, math.inf)
SLOPES = st.floats(-3, 3).map(lambda value: round(value, 2))
SPACES = st.floats(0, 2).map(lambda value: round(value, 2))


def tensor(values):
    return torch.tensor(values, dtype=torch.float64).view(1, 1, -1)


def maximizer(gradient, gamma, norm, power, room=None):
    return linear_maximizer(tensor(gradient), torch.tensor([gamma], dtype=torch.float64), norm, power, room)[0, 0]


def gain(gradient, delta, gamma, norm, power):
    return float(np.dot(gradient, delta) - gamma * np.linalg.norm(delta, ord=norm) ** power)


@pytest.mark.parametrize("norm", NORMS)
@oracles.quick
@given(st.lists(SLOPES, min_size=1, max_size=4), st.floats(0.1, 5))
def test_without_bounds_the_linear_maximizer_gains_what_the_dual_norm_says(norm, gradient, gamma):
    delta = maximizer(gradient, gamma, norm, 2).numpy()
    dual = np.linalg.norm(gradient, ord=oracles.dual_order(norm))
    assert np.linalg.norm(delta, ord=norm) == pytest.approx(dual / (2 * gamma))
    assert gain(gradient, delta, gamma, norm, 2) == pytest.approx(dual**2 / (4 * gamma))
    far = np.full(len(gradient), 100.0)
    best = oracles.best_linear_gain(np.array(gradient), gamma, norm, 2, -far, far)
    assert gain(gradient, delta, gamma, norm, 2) >= best - 1e-7


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
@oracles.quick
@given(st.lists(st.tuples(SLOPES, SPACES, SPACES), min_size=1, max_size=4), st.floats(0.1, 5))
def test_within_bounds_the_linear_maximizer_beats_a_general_solver(norm, power, coordinates, gamma):
    gradient, down, up = (np.array(part) for part in zip(*coordinates, strict=True))
    delta = maximizer(gradient, gamma, norm, power, Room(tensor(down), tensor(up))).numpy()
    assert (delta >= -down).all()
    assert (delta <= up).all()
    best = oracles.best_linear_gain(gradient, gamma, norm, power, -down, up)
    assert gain(gradient, delta, gamma, norm, power) >= best - 1e-7


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("norm", [1, math.inf])
@pytest.mark.parametrize("levels", [None, 16])
def test_within_bounds_the_linear_maximizer_is_that_of_sorting_all_coordinates(norm, power, levels):
    """Images have few gray levels, so coordinates reach bounds together; half of the pixels are dark."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(6, 5, 100, generator=generator, dtype=torch.float64)
    x = torch.rand(6, 5, 100, generator=generator, dtype=torch.float64)
    if levels is not None:
        x = (x * levels).round() / levels * (torch.rand(x.shape, generator=generator) < 0.5)
    gammas = torch.tensor([1e-3, 0.1, 1.0, 10.0, 100.0, 1e4], dtype=torch.float64)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        g, box = gradient.to(dtype), Room.within(x.to(dtype), (0.0, 1.0))
        result = linear_maximizer(g, gammas.to(dtype), norm, power, box)
        for lane, gamma in enumerate(gammas.tolist()):
            for example in range(5):
                parts = (part[lane, example].double().numpy() for part in (box.down, box.up))
                expected = oracles.sorted_linear_maximizer(
                    g[lane, example].double().numpy(), gamma, norm, power, *parts
                )
                off = np.linalg.norm(result[lane, example].double().numpy() - expected, ord=norm)
                assert off <= tolerance * np.linalg.norm(expected, ord=norm), (gamma, example)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("norm", [1, math.inf])
@pytest.mark.parametrize("levels", [None, 4])
def test_a_maximizer_nearby_changes_no_bit(norm, power, levels):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(6, 40, 30, generator=generator)
    x = x if levels is None else (x * levels).round() / levels
    room, gammas = Room.within(x, (0.0, 1.0)), torch.tensor([1e-3, 0.1, 1.0, 10.0, 100.0, 1e4])
    gradient, other = torch.randn(2, *x.shape, generator=generator)
    expected = linear_maximizer(gradient, gammas, norm, power, room)
    for change in (0.0, 1e-6, 1e-2, 1.0):
        near = linear_maximizer(gradient + change * other, gammas, norm, power, room)
        assert torch.equal(linear_maximizer(gradient, gammas, norm, power, room, near), expected)
    for near in (torch.zeros_like(x), room.along(-gradient), torch.full_like(x, 1e9)):
        assert torch.equal(linear_maximizer(gradient, gammas, norm, power, room, near), expected)


@pytest.mark.parametrize("norm", [1, math.inf])
def test_within_bounds_a_settled_example_does_not_depend_on_its_neighbors(norm):
    """A CPU leaves settled examples out; alone, an example takes the same steps to the same bits."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.rand(3, 8, 12, generator=generator), torch.randint(4, (3, 8), generator=generator)
    task = make_task(nn.Linear(12, 4))
    problem = Problem(task, torch.randn(3, task.num_params, generator=generator))
    ball = wasserstein(gamma=2.0, norm=norm, bounds=(0.0, 1.0), tolerance=1e-4, steps=40)
    together = ball(problem, x, y)
    for steps in range(1, 12):  # where each one was, and whether it had settled, after that many steps
        early = ball.changed(steps=steps)(problem, x, y)
        assert torch.equal(early.x_adv[early.converged], together.x_adv[early.converged])
    assert together.converged.all()
    assert not ball.changed(steps=1)(problem, x, y).converged.all()


@pytest.mark.parametrize("norm", [1, math.inf])
def test_a_box_open_on_one_side_bounds_only_that_side(norm):
    gradient, x = torch.tensor([[[1.0, -2.0, 0.5]]]), torch.tensor([[[0.5, 0.1, 0.3]]])
    open_box = linear_maximizer(gradient, torch.tensor([0.5]), norm, 2, Room.within(x, (0.0, math.inf)))
    wide_box = linear_maximizer(gradient, torch.tensor([0.5]), norm, 2, Room.within(x, (0.0, 1e4)))
    assert torch.allclose(open_box, wide_box, rtol=1e-6)
    assert (x + open_box).min() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_a_zero_gradient_moves_nothing(norm):
    room = Room(tensor([1.0, 0.0]), tensor([0.0, 2.0]))
    assert maximizer([0.0, 0.0], 0.5, norm, 2).tolist() == [0.0, 0.0]
    for power in (1, 2):
        assert maximizer([0.0, 0.0], 0.5, norm, power, room).abs().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["linear", "tanh"])
@pytest.mark.parametrize("ratio", [1.1, 2.0, 6.0])
def test_above_the_concavity_limit_the_ascent_converges_linearly(kind, ratio):
    """The paper's claim of section 3.3: after k steps at most ``(L_zz / 2 gamma)^k`` of the way is left.

    A step goes to ``x + g / (2 gamma)``, and g is L_zz-Lipschitz. No step is damped: the objective's curvature is at
    most ``2 gamma + L_zz <= 4 gamma``, so a step of ``1 / (2 gamma)`` never descends.
    """
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)]
    model = torch.nn.Linear(6, 4).double() if kind == "linear" else torch.nn.Sequential(*layers).double()
    for value in model.parameters():
        value.data *= 3.0
    x, y = torch.randn(30, 6).double(), torch.arange(30) % 4
    gamma = ratio * float(wafl.theory.constants(model, (x, y)).L_zz) / 2.0
    best = wafl.robust_loss(model, x, y, gamma=gamma, steps=1000, tolerance=0.0).x_adv
    start = (x - best).norm(dim=1)
    for steps in range(1, 9):
        result = wafl.robust_loss(model, x, y, gamma=gamma, steps=steps, tolerance=0.0).x_adv
        left = (result - best).norm(dim=1)
        assert bool((left <= ratio**-steps * start + 1e-12).all())
