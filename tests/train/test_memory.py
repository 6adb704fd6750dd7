"""When memory is short, lanes are computed in chunks, and the result stays the same."""

import pytest
import torch
from torch import nn

import wafl
from wafl.base.random import Key
from wafl.local import LocalStep
from wafl.parts.schedule import LocalWork
from wafl.tasks.structured import make_task
from wafl.train.client_task import ClientTask, LaneInput
from wafl.train.lanes import lanes as lanes_module
from wafl.train.lanes.lanes import lanes_that_fit

LANES = 1000


def federation(shape: tuple[int, ...] = (1, 8, 8), copies: int = 1) -> wafl.Federation:
    generator = torch.Generator().manual_seed(0)
    sizes = [copies * n for n in (12, 40, 7, 25)]
    return wafl.Federation.from_arrays(
        [(torch.rand(n, *shape, generator=generator), torch.arange(n) % 3) for n in sizes], bounds=(0.0, 1.0)
    )


class Asking(LocalStep):
    """A local step that asks for this number of gradients."""

    def __init__(self, gradients: int) -> None:
        self.gradients = gradients


def fitting(
    model: nn.Module,
    clients: wafl.Federation,
    batch_size: int | None = 8,
    lanes: int = LANES,
    steps: int = 1,
    gradients: int = 1,
) -> int:
    task = make_task(model)
    client = ClientTask(task, None, LocalWork(steps, None, batch_size), clients.train, local=Asking(gradients))
    which = torch.arange(lanes) % clients.num_clients
    zero = torch.zeros_like(which)
    scalars = {name: torch.zeros(lanes) for name in ("learning_rate", "momentum", "weight_decay")}
    params = task.initial()[None].expand(lanes, -1)
    return lanes_that_fit(client, LaneInput(params, which, scalars, Key(zero, zero, which, zero)))


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 3))


def small_cnn() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))


@pytest.mark.parametrize("lanes", [1, 7])
@pytest.mark.parametrize("free", [0, 1, 10**5, 10**15])
def test_at_least_one_lane_fits_however_little_memory_is_free(monkeypatch, free, lanes):
    monkeypatch.setattr(lanes_module, "free_bytes", lambda device: free)
    clients = federation()
    fits = fitting(mlp(16), clients, lanes=lanes)
    assert fits >= 1
    if free <= 1:
        assert fits == 1
    if free == 10**15:
        assert fits > lanes


def test_fewer_lanes_fit_as_the_batch_the_model_the_activations_steps_and_gradients_grow(monkeypatch):
    monkeypatch.setattr(lanes_module, "free_bytes", lambda device: 2 * 10**7)
    clients = federation()
    for growing in (
        [fitting(mlp(16), federation(copies=copies), 1024) for copies in (1, 2, 4)],
        [fitting(mlp(width), clients) for width in (16, 64, 256)],
        [fitting(mlp(4), clients, steps=steps) for steps in (1, 1000, 100_000)],
        [fitting(mlp(64), clients, gradients=gradients) for gradients in (1, 2, 4)],
        [fitting(wafl.models.cnn(clients, channels=channels), clients) for channels in ((2, 2), (8, 8), (16, 32))],
    ):
        assert LANES > growing[0] > growing[1] > growing[2] >= 1


def test_the_lanes_that_fit_need_no_more_memory_than_is_free(monkeypatch):
    """The parameters, their gradient and the batch are a lower bound on what the lanes need."""
    free = 5 * 10**6
    monkeypatch.setattr(lanes_module, "free_bytes", lambda device: free)
    clients = federation()
    for width in (16, 64, 256):
        model = mlp(width)
        params = sum(value.numel() for value in model.parameters())
        assert fitting(model, clients) * 4 * (2 * params + 8 * 64) <= free


def test_a_tiny_memory_changes_no_result(monkeypatch):
    clients = federation()
    asked = []

    def train() -> wafl.Run:
        options = {"rounds": 2, "local_epochs": 1, "batch_size": 8, "learning_rate": 0.1}
        return wafl.fit(small_cnn(), clients, wafl.WAFL(gamma=1.0, norm=float("inf"), steps=2), **options)

    plenty = train()

    def tiny(device) -> int:
        asked.append(device)
        return 1

    monkeypatch.setattr(lanes_module, "free_bytes", tiny)
    scarce = train()
    assert asked, "the fit never asked how much memory there is"
    for name, value in plenty.params.items():
        torch.testing.assert_close(scarce.params[name], value, atol=1e-5, rtol=0)
    torch.testing.assert_close(scarce.client_weights, plenty.client_weights, atol=1e-5, rtol=0)
    assert scarce.history.column("loss") == pytest.approx(plenty.history.column("loss"), abs=1e-5)
    assert scarce.history.column("achieved_radius") == pytest.approx(plenty.history.column("achieved_radius"), abs=1e-5)
