"""Threads that share the lanes: the bits are those of one thread, however many there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.train.lanes import lanes

SIZES = (40, 33, 17, 16, 9, 8, 5)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(36, 3),
    "layers": lambda: nn.Sequential(nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3)
    ),
    "large convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 256, 5), nn.ReLU(), nn.Conv2d(256, 32, 2), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(32, 3),
    ),
}  # fmt: skip
METHODS: dict[str, wafl.Method] = {
    "FedAvg": wafl.FedAvg(),
    "WAFL": wafl.WAFL(gamma=1.0, steps=2),
    "SCAFFOLD": wafl.SCAFFOLD(),
    "DRFA": wafl.DRFA(),
}


@pytest.fixture(autouse=True)
def always_worth(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lanes, "WORTH", 0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def clients(sizes: tuple[int, ...] = SIZES) -> wafl.Federation:
    generator = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(size, 36, generator=generator), torch.arange(size) % 3) for size in sizes]
    return wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=3)


def model(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return MODELS[name]()


def trained(name: str, method: str, sizes: tuple[int, ...] = SIZES, **options: Any) -> dict[str, Tensor]:
    if name == "convolution":
        options["statistics"] = "averaged"
    return wafl.fit(
        model(name), clients(sizes), METHODS[method], rounds=2, local_epochs=1, batch_size=8, **options
    ).params


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_workers_gives_the_same_bits(name: str, method: str) -> None:
    one = trained(name, method, workers=1)
    for count in (2, 3, 9):
        several = trained(name, method, workers=count)
        assert all(torch.equal(one[key], several[key]) for key in one), f"{count} workers"


@pytest.mark.parametrize("method", METHODS)
def test_clients_of_one_size_share_batched_convolutions(method: str) -> None:
    sizes = (20,) * 7
    one = trained("convolution", method, sizes, workers=1)
    several = trained("convolution", method, sizes, workers=3)
    assert all(torch.equal(one[key], several[key]) for key in one)


@pytest.mark.parametrize("name", MODELS)
def test_threads_of_torch_change_no_bit_and_are_given_back(name: str) -> None:
    one = trained(name, "WAFL")
    torch.set_num_threads(3)
    several = trained(name, "WAFL")
    assert all(torch.equal(one[key], several[key]) for key in one)
    assert torch.get_num_threads() == 3


def test_a_sweep_shares_its_batches_among_workers_too() -> None:
    runs = [
        wafl.sweep(model("layers"), clients(), wafl.WAFL(gamma=1.0, steps=2), {"gamma": [0.5, 1.0, 2.0]}, rounds=2,
                   local_epochs=1, batch_size=8, workers=count)
        for count in (1, 3)
    ]  # fmt: skip
    for one, several in zip(*runs, strict=True):
        assert all(torch.equal(one.params[key], several.params[key]) for key in one.params)


class Noting(nn.Linear):
    """Notes the threads that call it, and how many threads torch had there."""

    seen: set[tuple[str, int]]

    def forward(self, input: Tensor) -> Tensor:
        time.sleep(0.01)  # longer than another thread takes to begin
        Noting.seen.add((threading.current_thread().name, torch.get_num_threads()))
        return super().forward(input)


def test_as_many_threads_share_the_work_as_were_asked_for() -> None:
    for count in (1, 3):
        Noting.seen = set()
        module = nn.Sequential(Noting(36, 4), nn.Tanh(), nn.Linear(4, 3))
        wafl.fit(module, clients((20,) * 7), wafl.FedAvg(), rounds=1, local_epochs=1, workers=count)
        threads = {name for name, inside in Noting.seen if name != "MainThread" and inside == 1}
        assert len(threads) == (count if count > 1 else 0)


def test_small_steps_stay_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    Noting.seen = set()
    module = nn.Sequential(Noting(36, 4), nn.Tanh(), nn.Linear(4, 3))
    wafl.fit(module, clients((20,) * 7), wafl.FedAvg(), rounds=1, local_epochs=1, workers=3)
    assert {name for name, _ in Noting.seen} == {"MainThread"}


class Failing(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("broken on purpose")
        return super().forward(input)


def test_an_error_of_a_worker_is_raised_and_threads_are_given_back() -> None:
    torch.set_num_threads(2)
    module = nn.Sequential(Failing(36, 4), nn.Tanh(), nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        wafl.fit(module, clients((20,) * 7), wafl.FedAvg(), rounds=1, local_epochs=1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_number_of_workers_that_makes_no_sense_is_refused(count: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"workers"):
        wafl.fit(model("linear"), clients(), wafl.FedAvg(), rounds=1, local_steps=1, workers=count)
