"""Clients of unequal sizes: no lane's numbers depend on its company, and none pays for the largest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wafl
from wafl.parts.messages import Query, Replies
from wafl.parts.schedule import Schedule
from wafl.tasks.structured import LayeredTask, LinearTask, make_task
from wafl.tasks.task import Task
from wafl.train.client_task import ClientTask
from wafl.train.lanes.lanes import Lanes

SIZES = (90, 3, 40, 17, 64, 1)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(36, 3),
    "layers": lambda: nn.Sequential(nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)
    ),
}


def make_clients(sizes: tuple[int, ...] = SIZES) -> wafl.Federation:
    generator = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(size, 36, generator=generator), torch.arange(size) % 3) for size in sizes]
    return wafl.Federation.from_arrays(pairs, test_fraction=0, num_classes=3)


def make_model(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return MODELS[name]()


def answer(
    task: Task,
    clients: tuple[int, ...],
    kind: Any,
    method: wafl.Method,
    pair: bool = False,
    batch_size: int | None = 32,
) -> Replies:
    schedule = Schedule(rounds=1, local_epochs=2, batch_size=batch_size, learning_rate=0.1, momentum=0.5)
    client = ClientTask(task, method.objective, schedule.local_work, make_clients().train, 90, method.local)
    scalars = {**schedule.scalars(0), **({} if method.objective is None else method.objective.scalars())}
    query = Query(kind, 0, 0, clients, torch.ones(len(clients)), task.initial(), scalars)
    return Lanes(client, pair=pair).run([query])[0]


@pytest.mark.parametrize("kind", ["train", "loss"])
@pytest.mark.parametrize("model", MODELS)
def test_a_client_has_the_same_bits_alone_and_among_others(model: str, kind: str) -> None:
    task, method = make_task(make_model(model)), wafl.WAFL(gamma=1.0, steps=3)
    together = answer(task, tuple(range(len(SIZES))), kind, method)
    for client in range(len(SIZES)):
        alone = answer(task, (client,), kind, method, pair=True)
        assert torch.equal(alone.loss[0], together.loss[client])
        assert torch.equal(alone.cost[0], together.cost[client])
        if kind == "train":
            assert torch.equal(alone.params[0], together.params[client])


@pytest.mark.parametrize("flat", [True, False])
def test_a_chain_of_layers_gives_what_vmap_gives(flat: bool) -> None:
    first = [nn.Flatten(), nn.Linear(12, 20)] if flat else [nn.Linear(4, 5), nn.Flatten(), nn.Linear(15, 20)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = nn.Sequential(
            *first, nn.GELU(), nn.Sequential(nn.Linear(20, 1000, bias=False), nn.Tanh()), nn.Linear(1000, 3)
        )
        params = torch.stack([torch.randn(sum(p.numel() for p in model.parameters())) / 8 for _ in range(4)]).double()
        x, y, weight = torch.randn(4, 7, 3, 4).double(), torch.randint(3, (4, 7)), torch.rand(4, 7).double()
    fast = make_task(model.double())
    plain = Task(fast.module, fast.loss, fast.layout)
    assert isinstance(fast, LayeredTask)
    near = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(fast.outputs(params, x), plain.outputs(params, x), **near)
    slopes = (task.losses_and_gradient(params, x, y, weight)[1] for task in (fast, plain))
    torch.testing.assert_close(*slopes, **near)
    for one, two in zip(fast.input_gradient(params, x, y), plain.input_gradient(params, x, y), strict=True):
        torch.testing.assert_close(one, two, **near)


class Doubled(nn.ReLU):
    def forward(self, input: Tensor) -> Tensor:
        return 2.0 * super().forward(input)


class OwnLayer(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).tanh()


class OwnSequence(nn.Sequential):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).tanh()


def test_only_a_chain_of_known_layers_is_taken_for_one() -> None:
    frozen, twice, hooked = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    frozen.requires_grad_(False)
    hooked.register_forward_hook(lambda module, args, output: output + 1.0)
    for hidden in (Doubled(), nn.ReLU(inplace=True), nn.LayerNorm(4), frozen, hooked, nn.Sequential(twice, twice)):
        assert type(make_task(nn.Sequential(nn.Linear(4, 4), hidden, nn.Linear(4, 2)))) is Task
    assert type(make_task(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))) is LayeredTask
    parametrized = nn.utils.parametrize.register_parametrization(nn.Linear(4, 2), "weight", nn.Tanh())
    for last in (OwnLayer(4, 2), hooked, parametrized):
        assert type(make_task(last)) is type(make_task(nn.Sequential(nn.Flatten(), last))) is Task
    assert type(make_task(OwnSequence(nn.Linear(4, 2)))) is Task
    assert type(make_task(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))) is LinearTask
