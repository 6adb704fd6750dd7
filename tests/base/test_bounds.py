"""One truth about bounds: everything that moves examples respects the declared bounds, and its label names them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import wafl
from wafl.base.bounds import DATA, box_of, in_words, read_bounds
from wafl.objectives import Move, ProjectedAscent, Wasserstein

UNIT = (0.0, 1.0)
SEEN: list[tuple[float, float]] = []
"""The smallest and largest value of every batch that a spying objective has moved."""


@dataclass(frozen=True)
class Spy(Wasserstein):
    def __call__(self, *arguments: Any) -> Move:
        move = super().__call__(*arguments)
        SEEN.append((float(move.x_adv.min()), float(move.x_adv.max())))
        return move


@dataclass(frozen=True)
class ProjectedSpy(ProjectedAscent):
    def __call__(self, *arguments: Any) -> Move:
        move = super().__call__(*arguments)
        SEEN.append((float(move.x_adv.min()), float(move.x_adv.max())))
        return move


def make_clients(bounds: tuple[float, float] | None = UNIT) -> wafl.Federation:
    draw = np.random.default_rng(0)
    pairs = [(draw.random((12, 6), dtype=np.float32), np.arange(12) % 3) for _ in range(3)]
    return wafl.Federation.from_arrays(pairs, bounds=bounds, unit="pixels")


def train(clients: wafl.Federation, objective: Any) -> wafl.Run:
    method = wafl.Method("spied", objective, wafl.weights.uniform())
    SEEN.clear()
    return wafl.fit(wafl.models.mlr(clients), clients, method, rounds=2, local_steps=2, learning_rate=1.0)


@pytest.mark.parametrize(
    "objective",
    [Spy(gamma=0.05), Spy(gamma=0.5, norm=math.inf), Spy(gamma=0.05, norm=1), ProjectedSpy(0.4)],
    ids=lambda objective: f"{type(objective).__name__}, {objective.norm:g}",
)
@pytest.mark.filterwarnings("ignore::wafl.ConcavityWarning")
def test_a_training_objective_keeps_to_the_bounds_of_the_data_unless_told_otherwise(objective: Any) -> None:
    run = train(make_clients(), objective)
    assert min(low for low, _ in SEEN) >= 0.0
    assert max(high for _, high in SEEN) <= 1.0
    assert run.settings["method"]["objective"]["bounds"] == [0.0, 1.0]
    for clients, other in ((make_clients(), replace(objective, bounds=None)), (make_clients(None), objective)):
        run = train(clients, other)
        assert min(low for low, _ in SEEN) < 0.0 or max(high for _, high in SEEN) > 1.0
        assert run.settings["method"]["objective"]["bounds"] is None


@pytest.mark.parametrize(
    ("attack", "label"),
    [
        (wafl.PGD(epsilon=0.3), "l_inf PGD, epsilon 0.3 (pixels), 40 steps, "),
        (wafl.FGSM(0.3), "l_inf FGSM, epsilon 0.3 (pixels), "),
        (wafl.WassersteinShift(0.5), "worst l2 Wasserstein shift, radius 0.5 (pixels), "),
        (wafl.shifts.gaussian_noise(severity=0.5), "Gaussian noise, std 0.5 (pixels), "),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_attack_keeps_to_the_bounds_of_the_data_and_its_label_says_so(attack: Any, label: str) -> None:
    bounded, free = make_clients(), make_clients(None)
    run = train(bounded, None)
    box = replace(attack, bounds=UNIT)
    assert wafl.evaluate(run, bounded, attack=attack) == wafl.evaluate(run, bounded, attack=box)
    assert wafl.evaluate(run, bounded, attack=attack).attack == f"{label}within [0, 1]"
    leaving = wafl.evaluate(run, bounded, attack=replace(attack, bounds=None))
    assert leaving.attack == wafl.evaluate(run, free, attack=attack).attack == f"{label}unbounded"
    assert leaving.loss == wafl.evaluate(run, free, attack=attack).loss != wafl.evaluate(run, bounded, attack=box).loss
    row = wafl.compare([run], bounded, attacks=[attack]).rows[0].score
    assert row == replace(wafl.evaluate(run, bounded, attack=attack), label=row.label)


def test_calibration_moves_examples_as_training_does() -> None:
    clients = make_clients()
    run = train(clients, None)
    radii = {bounds: wafl.calibrate(run, clients, gammas=[0.02], bounds=bounds).radii for bounds in (DATA, UNIT, None)}
    assert radii[DATA] == radii[UNIT] < radii[None]
    ball, attack = wafl.calibrate(run, clients, gammas=[0.1]), wafl.PGD(epsilon=0.4)
    assert (
        ball.size_of(attack) == ball.size_of(replace(attack, bounds=UNIT)) < ball.size_of(replace(attack, bounds=None))
    )


def test_certificates_are_unbounded_and_say_so() -> None:
    """Over the box alone the worst loss is smaller, so a certificate for all inputs holds there too."""
    clients, free = make_clients(), make_clients(None)
    run = train(clients, None)
    bounded, other = (wafl.certify(run, each, radii=[0.5]) for each in (clients, free))
    assert bounded[0].achieved == other[0].achieved
    assert bounded[0].value == other[0].value
    assert "pixels, unbounded" in str(bounded)


def test_without_data_the_default_is_unbounded() -> None:
    model, x, y = torch.nn.Linear(6, 3), torch.rand(5, 6), torch.arange(5) % 3
    moved = wafl.PGD(epsilon=0.9)(model, x, y)
    assert torch.equal(moved, wafl.PGD(epsilon=0.9, bounds=None)(model, x, y))
    assert float(moved.min()) < 0.0


def test_a_shift_that_needs_bounds_takes_those_of_the_data() -> None:
    clients = make_clients()
    run, shift = train(clients, None), wafl.shifts.inversion(severity=1.0)
    assert wafl.evaluate(run, clients, attack=shift).attack == "inversion by 100%, within [0, 1]"
    with pytest.raises(ValueError, match="bounds=None: Inversion needs the darkest and the brightest"):
        wafl.evaluate(run, make_clients(None), attack=shift)
    with pytest.raises(ValueError, match=r"give bounds=\(low, high\)"):
        shift.apply(torch.rand(2, 3))


def test_bounds_in_words_and_from_words() -> None:
    assert [read_bounds(text) for text in ("data", "none", "-1,2.5")] == [DATA, None, (-1.0, 2.5)]
    assert [in_words(bounds) for bounds in (DATA, None, (-1.0, 2.5))] == [
        "within the bounds of the data", "unbounded", "within [-1, 2.5]",
    ]  # fmt: skip
    assert [box_of(bounds, UNIT) for bounds in (DATA, None, (-1.0, 2.5))] == [UNIT, None, (-1.0, 2.5)]


@pytest.mark.parametrize("text", ["dat", "0", "0,1,2", "a,b", "1,0", "nan,1", ""])
def test_a_misspelled_box_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"bounds=.* must be"):
        read_bounds(text)
