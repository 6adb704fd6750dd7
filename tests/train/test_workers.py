"""Threads that share the lanes: the bits equal one thread's, however many there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.tasks.fitness import find_traits
from wafl.tasks.structured import make_task

pytestmark = pytest.mark.filterwarnings("ignore::wafl.base.errors.SequentialWarning")

SIZES = (20, 17, 9, 8, 5)


class Noting(nn.Module):
    """A linear model that ``torch.func`` cannot batch; notes the threads that call it, and how many torch has there."""

    seen: ClassVar[set[tuple[str, int]]] = set()
    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(36, 3), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.001)  # longer than another thread takes to begin
        Noting.seen.add((threading.current_thread().name, torch.get_num_threads()))
        if Noting.fails and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("broken on purpose")
        return self.dropout(self.layer(x)) * (1.0 if float(x.detach().sum()) > 0 else 0.5)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "batched": lambda: nn.Linear(36, 3),
    "sequential": Noting,
    "large": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.Conv2d(128, 16, 3, padding=1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(576, 3),
    ),
}  # fmt: skip
METHODS: dict[str, wafl.Method] = {
    "FedAvg": wafl.FedAvg(),
    "WAFL": wafl.WAFL(gamma=1.0, steps=2),
    "SCAFFOLD": wafl.SCAFFOLD(),
    "DRFA": wafl.DRFA(),
}


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
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
    if name == "large":
        options["statistics"] = "averaged"
    return wafl.fit(
        model(name), clients(sizes), METHODS[method], rounds=2, local_epochs=1, batch_size=8, **options
    ).params


def test_a_large_network_is_computed_one_client_after_another() -> None:
    task, (x, y) = make_task(model("large")), clients().train.of(0)
    find_traits(task, task.initial()[None], x[None, :1], y[None, :1])
    assert task.traits.busy


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_workers_gives_the_same_bits(name: str, method: str) -> None:
    one = trained(name, method, workers=1)
    for count in (2, 9):
        several = trained(name, method, workers=count)
        assert all(torch.equal(one[key], several[key]) for key in one), f"{count} workers"


@pytest.mark.parametrize("name", ["sequential", "large"])
def test_threads_of_torch_change_no_bit_and_are_given_back(name: str) -> None:
    one = trained(name, "WAFL")
    torch.set_num_threads(3)
    several = trained(name, "WAFL")
    assert all(torch.equal(one[key], several[key]) for key in one)
    assert torch.get_num_threads() == 3


def test_a_sweep_shares_its_batches_among_workers_too() -> None:
    runs = [
        wafl.sweep(model("sequential"), clients(), wafl.WAFL(gamma=1.0, steps=2), {"gamma": [0.5, 1.0, 2.0]}, rounds=2,
                   local_epochs=1, batch_size=8, workers=count)
        for count in (1, 3)
    ]  # fmt: skip
    for one, several in zip(*runs, strict=True):
        assert all(torch.equal(one.params[key], several.params[key]) for key in one.params)


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_threads_share_the_work_as_were_asked_for(count: int) -> None:
    torch.set_num_threads(2)
    Noting.seen.clear()
    wafl.fit(model("sequential"), clients(), wafl.FedAvg(), rounds=1, local_epochs=1, batch_size=8, workers=count)
    trained = {(name, inside) for name, inside in Noting.seen if count == 1 or name != "MainThread"}
    assert len({name for name, _ in trained}) in ({1} if count == 1 else {2, 3})  # one may take two parts
    assert (count == 1) or {inside for _, inside in trained} == {1}


def test_an_error_of_a_worker_is_raised_and_threads_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    monkeypatch.setattr(Noting, "fails", True)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        wafl.fit(model("sequential"), clients(), wafl.FedAvg(), rounds=1, local_epochs=1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_number_of_workers_that_makes_no_sense_is_refused(count: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="workers"):
        wafl.fit(model("batched"), clients(), wafl.FedAvg(), rounds=1, local_steps=1, workers=count)
