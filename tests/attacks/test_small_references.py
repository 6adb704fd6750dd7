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
from wafl.attacks import ATTACKS, Attack, AutoAttack, Population
from wafl.objectives.surrogate import single_lane

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


@pytest.mark.parametrize("kind", [kind for kind, attack in ATTACKS.items() if attack.pointwise])
def test_an_example_moves_the_same_way_in_any_batch(kind: str) -> None:
    attack: Any = ATTACKS[kind]
    assert_same_in_batches(attack(**{attack.settings.size: 0.2}, bounds=(0.0, 1.0)))


def assert_same_in_batches(attack: Attack) -> None:
    """Draws are keyed by the numbers of examples, not by their places in a batch."""
    x = torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    problem, inputs, labels = single_lane(model(), x, torch.tensor([0, 1] * 3), None)
    rows = torch.arange(6)
    whole = attack.move(problem, Population(inputs, labels, rows), 7)
    pieces = [Population(inputs[:, part], labels[:, part], part) for part in rows.split(3)]
    torch.testing.assert_close(torch.cat([attack.move(problem, piece, 7) for piece in pieces], 1), whole)


def test_draws_of_a_population_depend_on_the_number_and_the_seed_alone() -> None:
    x = torch.zeros(1, 6, 2, 3)
    whole = Population(x, torch.zeros(1, 6))
    for draw in ("uniform", "normal"):
        values = getattr(whole, draw)(5)
        assert values.shape == x.shape
        some = Population(x[:, :2], torch.zeros(1, 2), torch.tensor([4, 1]))
        assert torch.equal(getattr(some, draw)(5), values[:, [4, 1]])
        assert not torch.equal(getattr(whole, draw)(6), values)
        assert len(values.unique()) == values.numel()
    many = Population(torch.zeros(1, 20_000, 1), torch.zeros(1, 20_000))
    assert float(many.uniform(0).mean()) == pytest.approx(0.5, abs=0.01)
    assert float(many.normal(0).std()) == pytest.approx(1.0, abs=0.02)
