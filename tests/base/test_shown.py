"""How far long work has come is shown where somebody looks, once, and on stderr."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import wafl
from wafl.base import shown as module


@pytest.fixture
def clients() -> wafl.Federation:
    pairs = [(torch.rand(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2) for _ in range(3)]
    return wafl.Federation.from_arrays(pairs)


def work(name: str, clients: wafl.Federation, **options: Any) -> Any:
    model = wafl.models.mlr(clients)
    schedule: Any = {"rounds": 2, "local_steps": 1}
    return {
        "fit": lambda: wafl.fit(model, clients, wafl.FedAvg(), **schedule, **options),
        "sweep": lambda: wafl.sweep(model, clients, wafl.WAFL(), {"gamma": [1.0, 2.0]}, **schedule, **options),
        "tune": lambda: wafl.tune(model, clients, wafl.FedAvg(), trials=2, **schedule, **options),
        "certify": lambda: wafl.certify(model, clients, radii=[0.1], **options),
        "evaluate": lambda: wafl.evaluate(model, clients, attack=wafl.PGD(epsilon=0.1), **options),
        "calibrate": lambda: wafl.calibrate(model, clients, gammas=[1.0], **options),
    }[name]()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fit", "FedAvg: 2 of 2 rounds, 0:00:00"),
        ("sweep", "2 runs of WAFL: 4 of 4 rounds, 0:00:00"),
        ("tune", "tune: 4 of 4 rounds, 0:00:00"),
        ("certify", "questions to all clients, 0:00:00"),
        ("evaluate", "evaluate: 2 batches, 0:00:00"),
        ("calibrate", "calibrate: 1 questions to all clients, 0:00:00"),
    ],
)
def test_progress_is_said_if_it_is_wanted(
    name: str, text: str, clients: wafl.Federation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG", -1.0)
    work(name, clients)
    assert capsys.readouterr() == ("", ""), "no terminal"
    monkeypatch.setattr(module, "timedelta", lambda seconds: "0:00:00")
    work(name, clients, progress=True)
    out, err = capsys.readouterr()
    assert text in err
    assert out == ""


def test_work_within_work_has_no_line_of_its_own(
    clients: wafl.Federation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG", -1.0)
    test = wafl.callbacks.EvaluateEvery(clients, rounds=1)
    work("fit", clients, progress=True, callbacks=[test])
    assert "evaluate" not in capsys.readouterr().err
