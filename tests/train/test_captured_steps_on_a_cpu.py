"""What a captured step does otherwise: it computes more lanes than take it, and writes over what they carried."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import wafl
from wafl.base.random import Key
from wafl.parts.schedule import LocalWork
from wafl.tasks.structured import make_task
from wafl.train.client_task import ClientTask, LaneInput, mapped
from wafl.train.lanes import lanes as lanes
from wafl.train.lanes.captured import Captured
from wafl.train.step import Batch, Carry, Eager, step


class Roomy(Eager):
    """Computes each step for the same number of lanes as a captured one would."""

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


class Over(Eager):
    """Writes over what lanes carried, as a captured step does."""

    def __call__(self, client: ClientTask, lanes: LaneInput, carry: Carry, batch: Batch) -> Carry:
        return step(client, lanes, mapped(torch.clone, carry), batch, over=True)


class Reusing(Eager):
    """Lets lanes be divided as for a captured step."""

    reuses = True


@pytest.mark.parametrize("method", [wafl.FedAvg(), wafl.WAFL(), wafl.SCAFFOLD(), wafl.DRFA()], ids=lambda m: m.name)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_that_writes_over_what_was_before_gives_the_same_bits(
    method: wafl.Method, momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=3, seed=0)
    model = wafl.models.mlr(clients)

    def train() -> wafl.Run:
        return wafl.fit(model, clients, method, rounds=2, cohort=3, local_steps=3, batch_size=16, momentum=momentum)

    expected = train()
    monkeypatch.setattr(lanes, "Eager", Over)
    for name, value in train().params.items():
        assert torch.equal(value, expected.params[name])


@pytest.mark.parametrize(("count", "sizes"), [(10, [10]), (128, [128]), (130, [65, 65]), (400, [100] * 4)])
def test_a_captured_network_is_computed_in_even_pieces(count: int, sizes: list[int]) -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=2, labels_per_client=5, seed=0)
    places, captured = torch.zeros(count, dtype=torch.int64), Reusing()
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 10))
    for model, expected in ((network, sizes), (wafl.models.mlr(clients), [count])):
        client = ClientTask(make_task(model), None, LocalWork(1, None, 8), clients.train)
        params = client.task.initial().expand(count, -1)
        sent = LaneInput(params, places, {}, Key(places, places, places, places))
        assert [len(piece.params) for piece in lanes.in_pieces(client, sent, captured, count)] == expected
        assert [len(piece.params) for piece in lanes.in_pieces(client, sent, Eager(), count)] == [count]


def test_a_large_network_is_computed_a_few_lanes_at_a_time() -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=2, labels_per_client=5, seed=0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 10))
    client = ClientTask(make_task(network), None, LocalWork(1, None, 8), clients.train)
    captured = Reusing()

    def sizes(params: int, take_step: Eager, workers: int = 1, count: int = 100) -> list[int]:
        places = torch.zeros(count, dtype=torch.int64)
        sent = LaneInput(torch.zeros(1).expand(count, params), places, {}, Key(places, places, places, places))
        return [len(piece.params) for piece in lanes.in_pieces(client, sent, take_step, 100, workers)]

    assert sizes(2**22, captured) == [100]
    assert sizes(11_000_000, captured, count=10) == [10]
    assert sizes(11_000_000, captured) == [5] * 20  # smaller pieces, if they do not all fit
    assert sizes(2**40, captured) == [1] * 100
    assert sizes(2**40, Eager()) == [100]  # as one batch
    client.task.traits = replace(client.task.traits, busy=True)
    assert sizes(1000, Eager()) == [100]
    assert sizes(11_000_000, Eager(), 4) == [4] * 25
    assert sizes(2**40, Eager(), 30) == [30, 30, 30, 10]
