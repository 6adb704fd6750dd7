"""The loss that a network reaches inside a ball."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import wafl
from wafl.attacks import WassersteinShift
from wafl.theory.certificates.mixture import Mixture
from wafl.theory.certificates.reached import worst_moves

RADII = [0.1, 0.4, 1.0]


def a_network() -> tuple[nn.Module, wafl.Federation]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    x = torch.randn(60, 4).double()
    return model, wafl.Federation.from_arrays([(x[:20], x[:20].argmax(1) % 3), (x[20:], x[20:].argmax(1) % 3)])


@pytest.mark.parametrize("norm", [1, 2, math.inf])
def test_moves_along_slopes_reach_about_as_much_as_ascents_from_many_starts(norm: float) -> None:
    model, clients = a_network()
    mixture = Mixture.of(model, clients)
    reached = worst_moves(mixture, RADII, norm)
    for radius, loss in zip(RADII, reached, strict=True):
        best = mixture.worst_loss(WassersteinShift(radius, norm=norm, steps=50, tolerance=1e-3, bounds=None))
        assert 0.95 * best <= loss <= 1.05 * best
    assert reached == sorted(reached)


def test_one_input_reaches_about_the_truth_and_never_more() -> None:
    """By duality, the worst loss is the least of gamma r^2 + phi_gamma; with one input, a fine grid has phi_gamma."""
    model = nn.Sequential(nn.Linear(1, 2), nn.Sigmoid(), nn.Linear(2, 2)).double()
    numbers = [[[2.0], [-1.0]], [0.0, 0.0], [[3.0, -1.0], [-2.0, 2.0]], [0.0, 0.0]]
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), numbers, strict=True):
            parameter.copy_(torch.tensor(values))
        x = torch.linspace(-9.0, 11.0, 20001).double()[:, None]
        losses = -model(x).log_softmax(-1)[:, 0]
    costs = (x[:, 0] - 1.0).square()
    example = torch.ones(1, 1).double(), torch.tensor([0])
    mixture = Mixture.of(model, wafl.Federation.from_arrays([example], test_fraction=0, num_classes=2))
    for radius, reached in zip(RADII, worst_moves(mixture, RADII, 2), strict=True):
        gammas = torch.logspace(-3, 2, 501).double().tolist()
        truth = min(gamma * radius**2 + float((losses - gamma * costs).max()) for gamma in gammas)
        assert 0.96 * truth <= reached <= truth
