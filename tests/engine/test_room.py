"""A step may compute more lanes than take it, as a captured one does: who takes it is the same."""

from __future__ import annotations

import pytest
import torch

import wafl
from wafl.engine import lanes
from wafl.engine.captured import Captured
from wafl.engine.step import Eager


class Roomy(Eager):
    """Computes each step for as many lanes as a captured one would."""

    def room(self, working: int) -> int:
        return Captured.room(self, working)  # pyright: ignore[reportArgumentType]


def test_a_sweep_over_clients_of_very_different_sizes_trains_every_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [
        (torch.randn(size, 4, generator=generator).double(), torch.randint(3, (size,), generator=generator))
        for size in (90, 84, 75, 66, 61, 50, 44, 40, 33, 28, 20, 16)
    ]
    clients = wafl.Federation.from_arrays(parts, test_fraction=0, num_classes=3)
    model = torch.nn.Linear(4, 3).double()

    def train() -> list[wafl.Run]:
        gammas = {"gamma": [1.0, 2.0, 4.0, 8.0]}
        return list(wafl.sweep(model, clients, wafl.WAFL(), gammas, rounds=3, local_epochs=2, batch_size=8))

    expected = train()
    monkeypatch.setattr(lanes, "Eager", Roomy)
    for run, plain in zip(train(), expected, strict=True):
        for name, value in plain.params.items():
            torch.testing.assert_close(run.params[name], value, atol=1e-12, rtol=0)
