"""What malicious nodes send, and how the tables are made of measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import wafl
from research.exploratory import malicious
from research.exploratory.liars import federation
from research.exploratory.malicious import Measured, Results, Setting, measure
from research.exploratory.malicious_attacks import AIMS, Attack, Scene


def scene(**given: torch.Tensor) -> Scene:
    """Three honest models around (2, 0), seen from the server's model (1, 0)."""
    models = torch.tensor([[2.0, 1.0], [2.0, -1.0], [2.0, 0.0]])
    base = {"start": torch.tensor([1.0, 0.0]), "honest": models, "first": torch.zeros(2)}
    return Scene(**{**base, **given}, pull=lambda relabeled, only: relabeled(torch.tensor([0.0, float(only or 0)])))


def test_an_attack_goes_so_many_usual_lengths_from_its_center() -> None:
    """The honest updates have the lengths 1, sqrt(2), sqrt(2), and the models are 0, 1, 1 from their mean."""
    root = 2.0**0.5
    assert Attack("opposite", "start", 2.0).model(scene()).tolist() == pytest.approx([1.0 - 2.0 * root, 0.0])
    assert Attack("opposite", "mean", 2.0).model(scene()).tolist() == pytest.approx([0.0, 0.0])
    assert Attack("back", "mean", 1.0).model(scene()).tolist() == pytest.approx([1.0, 0.0])
    assert Attack("8 as 3", "mean", 1.0).model(scene()).tolist() == pytest.approx([2.0 + root / 2, root / 2])
    assert AIMS["opposite signs"](scene()).tolist() == pytest.approx([0.0, 0.0]), "the honest models agree there"


def test_without_an_attack_a_training_has_the_bits_of_fit() -> None:
    setting = Setting("FedAvg", "default", "iid", 0, rounds=1)
    clients, spec = federation("iid", 0), setting.spec(0)
    (measured,) = measure(setting, [None], 0)
    method = wafl.FedAvg()
    run = wafl.fit(
        wafl.models.mlr(clients), clients, method, rounds=1, local_epochs=2, batch_size=32, learning_rate=0.1, seed=0
    )
    assert spec.schedule.rounds == 1
    assert measured.accuracy == pytest.approx(100.0 * (wafl.evaluate(run, clients).accuracy or 0.0))
    assert measured == Measured.of(run, clients)


def test_a_wrong_label_lowers_the_recall_of_its_class() -> None:
    setting = Setting("FedAvg", "none", "iid", 1, rounds=3)
    attack = Attack("8 as 3", "mean", 3.0, count=3)
    honest, attacked = measure(setting, [None, attack], 0)
    assert honest.recall[8] - attacked.recall[8] > 50.0
    assert attacked.recall[3] >= honest.recall[3], "what is taken for a 3 is no error there"


def test_tables_show_the_worst_attack_of_either_kind() -> None:
    honest = Measured(90.0, 80.0, (90.0,) * 10)
    broad = replace(honest, accuracy=80.0, recall=(80.0,) * 10)
    narrow = replace(honest, accuracy=88.0, recall=(*(90.0,) * 8, 60.0, 90.0))
    attacks = {Attack("opposite", "start", 1.0): [broad, broad], Attack("8 as 3", "mean", 1.0): [narrow, narrow]}
    accuracy, lost, recall = Results([honest, honest], attacks).cells()
    assert accuracy == "90.0 ± 0.0"
    assert lost == "10.0 ± 0.0 (opposite x1)"
    assert recall == "30.0 ± 0.0 of 8 (8 as 3 x1 from the honest mean)"
    assert malicious.shown([1.0, 3.0]) == "2.0 ± 1.0"
