"""The Sinkhorn ball against quadrature in one dimension, and its limit, the Wasserstein ball."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.base.random import Key
from wafl.objectives import ObjectiveState, sinkhorn
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

GAMMA, NOISE = 0.6, 0.4
X, Y = torch.tensor([[[-0.8], [0.1], [1.5]]], dtype=torch.float64), torch.tensor([[0, 1, 1]])
PARAMS = torch.tensor([[1.2, -0.9, 0.3, 0.1]], dtype=torch.float64)


def problem_of(params: Tensor = PARAMS) -> Problem:
    return Problem(make_task(nn.Linear(1, 2).double(), "cross_entropy"), params)


def state() -> ObjectiveState:
    zero = torch.zeros(1, dtype=torch.int64)
    return ObjectiveState({}, Key(zero, zero, zero, zero), torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64))


def integrated(params: Tensor, noise: float) -> Tensor:
    """``gamma eps log of the integral of N(d) exp(loss(x + d) / (gamma eps))`` on a fine grid, per example."""
    moves = torch.linspace(-12 * noise - 3, 12 * noise + 3, 60001, dtype=torch.float64)
    outputs = (X[0] + moves)[..., None] * params[0, :2] + params[0, 2:]
    losses = outputs.logsumexp(-1) - outputs.gather(-1, Y[0][:, None, None].expand(-1, len(moves), 1))[..., 0]
    scale = 2 * GAMMA * noise**2
    density = -moves.square() / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    return scale * ((losses / scale + density).logsumexp(-1) + math.log(float(moves[1] - moves[0])))


@pytest.mark.parametrize("noise", [0.1, NOISE, 1.0])
def test_the_value_is_that_of_quadrature_up_to_sampling_error(noise: float) -> None:
    move = sinkhorn(gamma=GAMMA, noise=noise, samples=1500)(problem_of(), X, Y, state())
    scale = 2 * GAMMA * noise**2
    torch.testing.assert_close(move.value[0], integrated(PARAMS, noise), rtol=0, atol=0.08 * scale)


@pytest.mark.slow
def test_the_gradient_is_that_of_quadrature_up_to_sampling_error() -> None:
    params = PARAMS.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(state().weight[0] @ integrated(params, NOISE), params)
    move = sinkhorn(gamma=GAMMA, noise=NOISE, samples=4000)(problem_of(), X, Y, state())
    torch.testing.assert_close(move.descent(problem_of(), state().weight), wanted, rtol=0, atol=0.01)


def test_a_lane_alone_has_the_bits_that_it_has_among_others() -> None:
    task, lanes = make_task(nn.Linear(4, 3)), torch.arange(40)
    generator = torch.Generator().manual_seed(0)
    params, x = torch.randn(40, 15, generator=generator), torch.randn(40, 7, 4, generator=generator)
    y, weight = torch.randint(3, (40, 7), generator=generator), torch.full((40, 7), 1 / 7)

    def gradient(chosen: Tensor) -> Tensor:
        problem, zero = Problem(task, params[chosen]), torch.zeros_like(chosen)
        here = ObjectiveState({}, Key(zero, zero, chosen, zero), weight[chosen])
        return sinkhorn()(problem, x[chosen], y[chosen], here).descent(problem, weight[chosen])

    assert torch.equal(gradient(lanes), torch.cat([gradient(lane) for lane in lanes.split(1)]))


def test_as_the_noise_falls_the_value_becomes_that_of_the_wasserstein_ball() -> None:
    wanted = wafl.objectives.wasserstein(gamma=GAMMA, bounds=None, steps=200, tolerance=0)(problem_of(), X, Y).value
    gaps = []
    for noise in (0.3, 0.03, 0.003):
        move = sinkhorn(gamma=GAMMA, noise=noise, samples=64, steps=200, tolerance=0.0)(problem_of(), X, Y, state())
        gaps.append(float((move.value - wanted).abs().max()))
    assert gaps[0] > 100 * gaps[2]
    assert gaps[2] < 1e-5
    at_rest = problem_of().loss(X, Y)
    assert float((wanted - at_rest).min()) > 0.05, "sampling around the example itself would find the loss at rest"


def test_without_noise_the_error_names_the_method_to_use() -> None:
    with pytest.raises(ValueError, match=r"noise=0.0 must be positive and finite; without noise use WAFL"):
        wafl.SinkhornDRO(noise=0.0)
