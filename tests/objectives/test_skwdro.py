"""Our Sinkhorn ball against SkWDRO's, on logistic regression whose data are in one place.

SkWDRO draws moves d from ``N(0, sigma^2 I)`` and averages ``exp((loss - lambda ||d||^2) / epsilon)``. The Gaussian and
the exponential of the cost make a narrower Gaussian, with ``1 / noise^2 = 1 / sigma^2 + 2 lambda / epsilon``, and a
factor ``(noise / sigma)^D``. So its dual is ours with that noise and ``gamma = lambda + epsilon / (2 sigma^2)``, plus
``lambda radius^2 + epsilon D log(noise / sigma)``.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wafl.base.random import Key
from wafl.objectives import Move, ObjectiveState, sinkhorn
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    skwdro: Any = pytest.importorskip("skwdro.torch", reason="pip install 'wafl-learn[peers]'")

pytestmark = pytest.mark.slow
"""Loading SkWDRO takes seconds."""

FEATURES, EXAMPLES, SAMPLES = 3, 12, 4000
SIGMA, EPSILON, PRICE, RADIUS = 0.5, 0.15, 0.4, 0.3
NOISE = 1.0 / math.sqrt(1.0 / SIGMA**2 + 2.0 * PRICE / EPSILON)
GAMMA = PRICE + EPSILON / (2.0 * SIGMA**2)


class Logistic(nn.Module):
    """``log(1 + exp(-<w, x>))``: the label is the sign of x."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(-x @ self.weight)[..., None]


def drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(EXAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return x, torch.tensor([0.9, -0.6, 1.3], dtype=torch.float64)


def theirs(x: Tensor, weight: Tensor, *, importance: bool) -> tuple[float, Tensor]:
    model = Logistic(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dual = skwdro.robustify(
            model, None, torch.tensor(RADIUS, dtype=torch.float64), x, None, n_samples=SAMPLES, seed=0,
            epsilon=EPSILON, sigma=SIGMA, imp_samp=importance, adapt=None,
        )  # fmt: skip
        dual._lam.data.fill_(PRICE)
        value = dual(x)
    (slope,) = torch.autograd.grad(value, model.weight)
    constant = PRICE * RADIUS**2 + EPSILON * FEATURES * math.log(NOISE / SIGMA)
    return float(value.detach()) - constant, slope


def ours(x: Tensor, weight: Tensor) -> tuple[float, Tensor]:
    """The same with two classes: the first has outputs 0, and every example is of the second."""
    task = make_task(nn.Linear(FEATURES, 2, bias=False).double(), "cross_entropy")
    problem = Problem(task, torch.cat([torch.zeros_like(weight), weight])[None])
    zero = torch.zeros(1, dtype=torch.int64)
    share = torch.full((1, EXAMPLES), 1.0 / EXAMPLES, dtype=torch.float64)
    state, y = ObjectiveState({}, Key(zero, zero, zero, zero), share), torch.ones(1, EXAMPLES, dtype=torch.int64)
    move: Move = sinkhorn(gamma=GAMMA, noise=NOISE, samples=SAMPLES)(problem, x[None], y, state)
    return float((share * move.value).sum()), move.descent(problem, share)[0, FEATURES:]


@pytest.mark.parametrize(("importance", "error"), [(True, 0.005), (False, 0.015)])  # plain sampling misses more
def test_value_and_gradient_are_those_of_skwdro_up_to_sampling_error(importance: bool, error: float) -> None:
    x, weight = drawn()
    value, slope = theirs(x, weight, importance=importance)
    our_value, our_slope = ours(x, weight)
    clean = float(nn.functional.softplus(-x @ weight).mean())
    assert our_value - clean > 0.1, "the ball matters"
    assert our_value == pytest.approx(value, abs=error)
    torch.testing.assert_close(our_slope, slope, rtol=0, atol=2 * error)
