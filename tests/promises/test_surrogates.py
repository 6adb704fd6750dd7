"""What the checker says an example can gain, against every move of a fine grid of the plane."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from wafl.promises.known import Ball, Known, known
from wafl.promises.quantities import largest_surrogate, quantity_of, surrogates
from wafl.tasks.losses import CrossEntropy

LINE = torch.linspace(-4.0, 4.0, 161, dtype=torch.float64)
MOVES = torch.cartesian_prod(LINE, LINE)
GAMMAS = [1.0, 5.0, 20.0]  # the best moves lie well within the grid


def model(kind: str) -> Known:
    """A linear model, a network, or one that is as steep in l_inf as its layers allow, along the diagonal."""
    torch.manual_seed(0)
    layers: dict[str, list[nn.Module]] = {
        "linear": [nn.Linear(2, 3)],
        "network": [nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)],
        "diagonal": [nn.Linear(2, 1, bias=False), nn.ReLU(), nn.Linear(1, 3)],
    }
    for layer in layers[kind]:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=2.0 if kind == "diagonal" else 1.0)
            if layer.out_features == 1:
                nn.init.ones_(layer.weight)
    result = known(nn.Sequential(*layers[kind]), CrossEntropy())
    assert result is not None
    return result


def lengths(norm: float) -> Tensor:
    return torch.linalg.vector_norm(MOVES, ord=norm, dim=1)


def gained(model: Known, ball: Ball, x: Tensor, y: Tensor, gamma: float) -> Tensor:
    """The largest loss, or error, after any move of the grid, less its price."""
    outputs = model.plain((x[:, None] + MOVES).view(-1, 2)).view(len(x), len(MOVES), 3)
    leads = outputs - outputs.gather(2, y[:, None, None].expand(-1, len(MOVES), 1))
    values = leads.logsumexp(2) if ball.quantity.metric == "loss" else (outputs.argmax(2) != y[:, None]).double()
    return (values - gamma * lengths(ball.norm) ** ball.power).amax(1)


@pytest.mark.parametrize("metric", ["loss", "error"])
@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("kind", ["linear", "network", "diagonal"])
def test_no_move_gains_more_than_the_checker_says(kind: str, norm: float, metric: str) -> None:
    known, ball = model(kind), Ball(quantity_of(metric), norm, 2)
    x = torch.randn(12, 2, dtype=torch.float64)
    y = torch.arange(12) % 3 if metric == "loss" else known.plain(x).argmax(1)
    for gamma, upper in zip(GAMMAS, surrogates(known, ball, x, y, GAMMAS), strict=True):
        reached = gained(known, ball, x, y, gamma)
        assert bool((reached <= upper).all())
        if kind == "linear":
            assert float((upper - reached).mean()) < 0.35, "and it is not far above"


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_no_example_of_the_box_gains_more_than_the_largest_surrogate(norm: float) -> None:
    known, ball = model("linear"), Ball(quantity_of("loss"), norm, 2)
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 2).repeat_interleave(3, 0)
    for gamma in GAMMAS:
        reached = float(gained(known, ball, corners, torch.arange(12) % 3, gamma).max())
        assert reached <= largest_surrogate(known, ball, (2,), (0.0, 1.0), gamma) <= reached + math.log(3.0)


@pytest.mark.parametrize("excess", [0.005, 0.01])
def test_an_ascent_that_stops_early_adds_what_it_may_have_missed(excess: float) -> None:
    """At a gamma just above the concavity limit, and an example whose best move ends where the loss bends most."""
    line = nn.Linear(1, 2, bias=False)
    nn.init.constant_(line.weight[:1], 1.0)
    nn.init.constant_(line.weight[1:], -1.0)
    proof, gamma = known(nn.Sequential(line), CrossEntropy()), (1.0 + excess) / 2.0
    assert proof is not None
    moved = torch.linspace(-1.0, 1.0, 200001, dtype=torch.float64)
    phi = float(((-2.0 * moved).exp().log1p() - gamma * (moved - 0.99).square()).max())
    x = torch.full((1, 1), 0.99, dtype=torch.float64)
    upper = float(surrogates(proof, Ball(quantity_of("loss"), 2, 2), x, torch.tensor([0]), [gamma])[0])
    assert phi <= upper <= phi + 5e-3
