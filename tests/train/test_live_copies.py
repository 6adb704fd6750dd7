"""How many copies of what clients send and keep are alive at once, and that none outlives its training."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
import torch

import wafl
from benchmarks.live import Live
from wafl.parts import lengths

CLIENTS, PIXELS = 16, 600
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> wafl.Federation:
    monkeypatch.setattr(lengths, "NUMBERS", 1000)  # a buffer of this size whatever the model: here it would be the peak
    pairs = [(torch.rand(2, PIXELS), torch.arange(2)) for _ in range(CLIENTS)]
    return wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=4)


@pytest.fixture
def uncollected() -> Generator[None, None, None]:
    """Without the garbage collector, so that only unreferenced objects are released."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def train(clients: wafl.Federation, method: wafl.Method, chunk_size: int) -> int:
    """Train two rounds of all clients; returns the bytes of a model."""
    run = wafl.fit(
        wafl.models.mlr(clients), clients, method, rounds=2, local_steps=2, batch_size=1, chunk_size=chunk_size
    )
    return sum(value.nbytes for value in run.params.values())


@pytest.mark.parametrize("method", [wafl.FedAvg(), wafl.SCAFFOLD(), wafl.FedDyn()], ids=lambda method: method.name)
def test_copies_at_the_peak(clients: wafl.Federation, method: wafl.Method) -> None:
    sent, kept = len({"params", *method.local.sends}), method.local.initial_memory(torch.zeros(1)) is not None
    for chunk, most in (
        # Two lanes at a time: an eighth of the work below, and the server.
        (2, sent + kept + 1.5),
        # The start of a step and its gradient, its end; what clients keep as it is and as they read it, what else a
        # local step makes: mostly a direction, and the sum of gradients before and after.
        (CLIENTS, 8.3 if kept else 4.0),
    ):
        with Live() as live:
            size = train(clients, method, chunk)
        copies = live.peak / (size * CLIENTS)
        assert sent + kept < copies < most


@pytest.mark.usefixtures("uncollected")
def test_a_training_leaves_nothing_to_the_garbage_collector(clients: wafl.Federation) -> None:
    with Live() as live:
        size = train(clients, wafl.SCAFFOLD(), CLIENTS)
    assert live.peak > 5 * CLIENTS * size
    assert live.bytes < 3 * size  # modules refer to themselves


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_training_of_a_network_leaves_no_memory_behind(device: str) -> None:
    """A ReLU's gradient needs its result, whose graph would keep it alive if anything kept it for the graph."""
    clients = wafl.Federation.from_arrays([(torch.rand(4, 1, 8, 8), torch.arange(4)) for _ in range(3)])
    model, left = wafl.models.cnn(clients, channels=(4, 8)), list[int]()
    with Live() as live:
        for _ in range(4):  # the first sets up libraries
            wafl.fit(model, clients, wafl.FedAvg(), rounds=1, local_steps=1, device=device)
            gc.collect()
            left.append(torch.cuda.memory_allocated() if device == "cuda" else live.bytes)
    assert left[1] == left[2] == left[3]
