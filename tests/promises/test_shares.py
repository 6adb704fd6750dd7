"""The bound by shares of classes, against moves that a search finds, and its grid against the set of all shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.base.norms import dual, steepest
from wafl.promises import shares
from wafl.promises.known import Ball, known
from wafl.promises.quantities import quantity_of, surrogates
from wafl.promises.shares import Shares
from wafl.tasks.losses import CrossEntropy

NORMS = [1, 2, math.inf]
KINDS = ["random", "equal rows", "one input", "huge margins", "graded", "opposite"]


def problem(kind: str, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, margins and labels of a few examples."""
    rng = torch.Generator().manual_seed(seed)
    inputs = 1 if kind == "one input" else 3
    weight = torch.randn(classes, inputs, dtype=torch.float64, generator=rng)
    outputs = 2.0 * torch.randn(24, classes, dtype=torch.float64, generator=rng)
    if kind == "equal rows":
        weight[1:] = weight[-1]
        outputs[:, 1:] = outputs[:, -1:]  # and ties
    if kind == "huge margins":
        outputs *= 1e4
    if kind == "graded":
        weight *= torch.logspace(-6, 3, classes, dtype=torch.float64)[:, None]
    if kind == "opposite":
        weight[1::2] = -weight[: classes // 2]
    y = torch.arange(24) % classes
    return weight, outputs - outputs.gather(1, y[:, None]), y


def value(margins: Tensor, steps: Tensor, moves: Tensor, gamma: float, norm: float) -> np.ndarray:
    """``logsumexp_j(A_j + <d_j, move>) - gamma ||move||^2`` in extended precision: margins ``[n, 1, C]``."""
    a, d, x = (each.numpy().astype(np.longdouble) for each in (margins, steps, moves))
    lines = a + (d[:, None] * x[:, :, None]).sum(-1)
    top = lines.max(-1)
    length = {1: np.abs(x).sum(-1), 2: np.sqrt((x * x).sum(-1)), math.inf: np.abs(x).max(-1)}[norm]
    return top + np.log(np.exp(lines - top[..., None]).sum(-1)) - gamma * length**2


def reached(weight: Tensor, margins: Tensor, y: Tensor, gamma: float, norm: float) -> np.ndarray:
    """The most that an ascent gains from many starts: each step moves as far as the present gradient is worth."""
    steps = weight - weight[y][:, None]  # [n, C, d]
    rng = torch.Generator().manual_seed(0)
    starts = torch.rand(len(y), 60, len(weight), dtype=torch.float64, generator=rng).pow(6)
    corners = torch.eye(len(weight), dtype=torch.float64).expand(len(y), -1, -1)
    p, moves = torch.cat([starts / starts.sum(2, keepdim=True), corners], 1), steps[:, :1]
    for _ in range(60):
        slope = p @ steps
        length = torch.linalg.vector_norm(slope, ord=dual(norm), dim=2, keepdim=True) / (2.0 * gamma)
        moves = length * steepest(slope, norm)
        before, p = p, (margins[:, None] + moves @ steps.transpose(1, 2)).softmax(2)
        if torch.equal(p, before):  # so would be all that follow
            break
    return value(margins[:, None], steps, moves, gamma, norm).max(1)


@pytest.mark.parametrize(
    "gamma", [1e-6, pytest.param(0.05, marks=pytest.mark.slow), 0.5, pytest.param(3.0, marks=pytest.mark.slow), 1e8]
)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_move_gains_more_than_the_shares_say(kind: str, norm: float, gamma: float) -> None:
    for classes in (1, 2, 3, 4, 5, 14):
        weight, margins, y = problem(kind, classes, seed=classes)
        slopes = torch.stack([torch.linalg.vector_norm(weight - row, ord=dual(norm), dim=1) for row in weight])[y]
        upper = Shares(weight, norm).surrogate(margins, slopes, y, gamma).numpy()
        best = reached(weight, margins, y, gamma, norm)
        assert bool((best <= upper).all()), classes
        assert bool((upper - best <= 0.15 * (1.0 + np.abs(best))).all()), f"{classes} classes: and it is not far above"


def test_weights_too_large_for_squares_prove_nothing() -> None:
    weight = 1e200 * torch.eye(3, dtype=torch.float64)
    slopes = torch.full((2, 3), 2e200, dtype=torch.float64)
    upper = Shares(weight, 2).surrogate(torch.zeros(2, 3, dtype=torch.float64), slopes, torch.tensor([0, 1]), 1.0)
    assert bool((upper == math.inf).all())


@pytest.mark.parametrize("chosen", [0, 1, 2, 3])
def test_the_simplices_of_the_grid_cover_all_shares(chosen: int) -> None:
    grid, corners, _, interpolate = shares._grid(chosen)
    simplices = grid[corners.T]
    torch.testing.assert_close(simplices.det().abs().sum(), torch.tensor(1.0, dtype=torch.float64))
    points = torch.distributions.Dirichlet(torch.full((chosen + 1,), 0.5, dtype=torch.float64)).sample(
        torch.Size([2000])
    )
    coordinates = torch.linalg.solve(simplices.mT, points.T)  # of each point in each simplex
    assert bool((coordinates.amin(1).amax(0) > -1e-9).all())
    values = torch.rand(len(grid), dtype=torch.float64)
    k = (values @ interpolate).view(chosen + 1, -1)
    torch.testing.assert_close((simplices @ k.T[..., None])[..., 0], values[corners.T], rtol=0, atol=1e-13)


@pytest.mark.parametrize("norm", NORMS)
def test_the_same_weights_share_their_norms_and_others_do_not(norm: float) -> None:
    torch.manual_seed(0)
    x, y, ball = torch.randn(8, 3, dtype=torch.float64), torch.arange(8) % 4, Ball(quantity_of("loss"), norm, 2)
    layer = nn.Linear(3, 4).double()

    def bounds() -> Tensor:
        proof = known(nn.Sequential(layer), CrossEntropy())
        assert proof is not None
        return surrogates(proof, ball, x, y, [0.5])

    first = bounds()
    torch.testing.assert_close(bounds(), first, rtol=0, atol=0)
    nn.init.normal_(layer.weight, std=3.0)
    changed = bounds()
    shares.shares_of.cache_clear()
    torch.testing.assert_close(bounds(), changed, rtol=0, atol=0)


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, wafl.Federation]:
    digits = wafl.load_dataset("digits").partition(num_clients=4, iid=True, preprocess="unit")
    model = wafl.models.mlr(digits)
    run = wafl.fit(model, digits, wafl.FedAvg(), rounds=15, local_epochs=1, learning_rate=0.5, progress=False)
    rows = torch.arange(0, len(digits.train.y), len(digits.train.y) // 40)
    pair = digits.train.rows(rows, torch.float64), digits.train.y[rows]
    return run.model, wafl.Federation.from_arrays([pair], bounds=digits.bounds, num_classes=10, test_fraction=0.0)


@pytest.mark.parametrize("norm", NORMS)
def test_what_is_published_about_a_linear_model_is_within_five_percent(
    norm: float, trained: tuple[nn.Module, wafl.Federation]
) -> None:
    model, clients = trained
    certificate = wafl.certify(model, clients, radii=[0.5], norm=norm, achieved=False, progress=False)
    assert certificate.published.values[0.5] <= 1.05 * certificate[0].best
