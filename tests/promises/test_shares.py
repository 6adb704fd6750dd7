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
    shares = torch.rand(len(y), 60, len(weight), dtype=torch.float64, generator=rng).pow(6)
    shares = torch.cat([shares / shares.sum(2, keepdim=True), torch.eye(len(weight)).double().expand(len(y), -1, -1)], 1)
    for _ in range(60):
        slope = shares @ steps
        length = torch.linalg.vector_norm(slope, ord=dual(norm), dim=2, keepdim=True) / (2.0 * gamma)
        moves = length * steepest(slope, norm)
        shares = (margins[:, None] + moves @ steps.transpose(1, 2)).softmax(2)
    return value(margins[:, None], steps, moves, gamma, norm).max(1)


@pytest.mark.parametrize("gamma", [1e-6, 0.05, 0.5, 3.0, 1e8])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_move_gains_more_than_the_shares_say(kind: str, norm: float, gamma: float) -> None:
    for classes in (1, 2, 3, 4, 5, 14):
        weight, margins, y = problem(kind, classes, seed=classes)
        slopes = torch.stack([torch.linalg.vector_norm(weight - row, ord=dual(norm), dim=1) for row in weight])[y]
        upper = Shares(weight, norm).surrogate(margins, slopes, y, gamma).numpy()
        best = reached(weight, margins, y, gamma, norm)
        assert bool((best <= upper).all()), (classes, float((best - upper).max()))
        print("T", kind, norm, gamma, classes, float(((upper - best) / (1 + abs(best))).max()))
