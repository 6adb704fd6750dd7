"""Every kind of attack that an experiment file can name moves two examples as a plain reference does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.oracles.objective import linear_model
from tests.oracles.reference import Ball, Minimized, cross_entropy
from tests.oracles.worst_distribution import by_the_dual
from wafl import FGSM, PGD, WassersteinShift
from wafl.attacks import ATTACKS, AutoAttack

X = torch.tensor([[0.3, 0.6], [0.8, 0.2]], dtype=torch.float64)
Y = torch.tensor([0, 1])


def model() -> nn.Linear:
    model = nn.Linear(2, 2).double()
    model.load_state_dict({"weight": torch.tensor([[1.0, 2.0], [3.0, -1.0]]), "bias": torch.tensor([0.5, -0.2])})
    return model


def by_ball(ball: Ball) -> torch.Tensor:
    params = {name: value.detach() for name, value in model().named_parameters()}
    return ball.move(Minimized(model(), cross_entropy), params, X, Y, 0.0, 0).x


def pgd() -> None:
    moved = PGD(epsilon=0.3, steps=2, step_size=0.2, bounds=None)(model(), X, Y)
    torch.testing.assert_close(moved, by_ball(Ball(0.3, 0.2, 2)), rtol=0, atol=1e-12)


def fgsm() -> None:
    torch.testing.assert_close(FGSM(epsilon=0.3, bounds=None)(model(), X, Y), by_ball(Ball(0.3, 0.3, 1)))


def wasserstein() -> None:
    x, linear = np.array([2.0, -0.5]), linear_model(np.array([[0.0], [3.0]]))
    wanted = by_the_dual(3.0, x, np.full(2, 0.5), 0.8)
    shift = WassersteinShift(0.8, bounds=None)
    assert shift.worst_loss(linear, x[:, None], [1, 1]) == pytest.approx(wanted, rel=2e-3)
    moved = torch.as_tensor(shift(linear, x[:, None], [1, 1]))
    assert float((moved[:, 0] - torch.from_numpy(x)).square().mean().sqrt()) == pytest.approx(0.8, rel=1e-2)


def autoattack() -> None:
    """Of two classes with ``w = w_0 - w_1``, an example falls as soon as its lead is less than ``epsilon ||w||_1``."""
    leads = (model()(X)[torch.arange(2), Y] - model()(X)[torch.arange(2), 1 - Y]).detach()
    assert leads.tolist() == pytest.approx([1.9, 0.3])
    epsilon = 0.1  # ||w||_1 = 5
    moved = AutoAttack(epsilon=epsilon, bounds=(0.0, 1.0))(model(), X, Y)
    assert (model()(moved).argmax(-1) == Y).tolist() == [True, False]


KINDS: dict[str, Any] = {"pgd": pgd, "fgsm": fgsm, "wasserstein": wasserstein, "autoattack": autoattack}


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_moves_examples_like_its_reference(kind: str) -> None:
    assert kind in KINDS, f"{kind} has no small reference: write one in tests/attacks/test_small_references.py"
    KINDS[kind]()
