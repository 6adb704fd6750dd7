"""Lanes side by side, as a captured step computes them, have the numbers of lanes one after another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wafl.tasks.gpu.kernels import Pooling, with_pooling
from wafl.tasks.gpu.precision import aligned, casts_of, computing
from wafl.tasks.modes import one_by_one
from wafl.tasks.modes.one_by_one import side_by_side
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Task, Traits

LANES, BATCH = 3, 4


def network(*, statistics: bool = False) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4) if statistics else nn.GroupNorm(2, 4)
    first, second = nn.Conv2d(2, 4, 3, padding=1), nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), norm, nn.MaxPool2d(2), second)


@pytest.fixture(autouse=True)
def no_streams(monkeypatch) -> None:
    monkeypatch.setattr(one_by_one, "_streams", lambda count: [])
    # These tensors are on no GPU, though the machine may have one.
    monkeypatch.setattr("wafl.tasks.gpu.kernels.kernels", lambda name: None)


def problem_of(model: nn.Module) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    task = make_task(model)
    assert type(task) is Task
    task.traits = Traits(obstacle="these lanes go one after another")
    params = task.initial() + 0.1 * torch.randn(LANES, task.num_params + task.num_statistics)
    params[:, task.num_params :] = params[:, task.num_params :].abs()
    return Problem(task, params), torch.randn(LANES, BATCH, 2, 8, 8), torch.arange(LANES * BATCH).view(LANES, -1) % 5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("statistics", [False, True])
def test_parameters_that_are_prepared_once_give_the_same_bits(precision: str, statistics: bool) -> None:
    problem, x, y = problem_of(network(statistics=statistics))
    weight = torch.rand(LANES, BATCH)

    task, params = problem.task, problem.params
    with computing(precision, torch.device("cpu")), side_by_side():
        in_each_call = [
            task.outputs(params, x),
            *task.input_gradient(params, x, y),
            *task.losses_and_gradient(params, x, y, weight),
        ]
        once = [problem.outputs(x), *problem.loss_and_gradient(x, y), *problem.loss_and_descent(x, y, weight)]
    for one, other in zip(in_each_call, once, strict=True):
        torch.testing.assert_close(other, one, atol=0, rtol=0)


def test_only_layers_that_a_reduced_precision_casts_are_prepared() -> None:
    casts = casts_of(network())
    assert casts.params == {"0.weight", "0.bias", "5.1.weight", "5.1.bias"}
    assert casts.inputs
    flat = casts_of(nn.Sequential(nn.Flatten(), nn.Linear(2, 2)))
    assert (flat.params, flat.inputs) == ({"1.weight", "1.bias"}, True)
    assert not casts_of(nn.Sequential(nn.Tanh(), nn.Linear(2, 2))).inputs

    class Own(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self[0].weight.sum()

    casts = casts_of(Own(nn.Linear(2, 2)))
    assert (casts.params, casts.inputs) == (set(), False)


class Brought(nn.Module):
    """A network of one's own: a layer that is used twice, one whose weights are read elsewhere, and two plain ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.twice, self.watched, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.max_pool2d(self.norm(self.first(x)).relu(), 4).flatten(1)
        hidden = self.twice(self.twice(hidden).relu())
        return self.last(self.watched(hidden) / self.watched.weight.norm())


def test_a_network_of_ones_own_has_its_weights_cast_once_where_only_one_layer_reads_them() -> None:
    problem, x, y = problem_of(Brought())
    task, params, weight = problem.task, problem.params, torch.rand(LANES, BATCH)
    cast = task.cast_by_layers(params[0], x[0])
    assert cast == {"first.weight", "first.bias", "watched.bias", "last.weight", "last.bias"}
    task.traits = Traits(obstacle="these lanes go one after another", cast=cast)
    with computing("bfloat16", torch.device("cpu")), side_by_side():
        in_each_call = [*task.input_gradient(params, x, y), *task.losses_and_gradient(params, x, y, weight)]
        once = [*problem.loss_and_gradient(x, y), *problem.loss_and_descent(x, y, weight)]
    for one, other in zip(in_each_call, once, strict=True):
        torch.testing.assert_close(other, one, atol=0, rtol=0)


def test_lanes_begin_where_a_gpu_reads_four_numbers_at_once() -> None:
    flat = torch.randn(3, 18)  # 72 bytes: the second lane begins in the middle of sixteen
    views = flat[:, :8], flat[:, 8:]
    whole, odd = (aligned(view) for view in views)
    assert all(lane.data_ptr() % 16 == 0 for lane in whole)
    torch.testing.assert_close(whole, views[0], atol=0, rtol=0)
    assert odd is views[1], "ten numbers cannot lie so in all lanes"
    assert aligned(whole) is whole


def test_a_sequence_that_pools_shares_its_layers_and_computes_the_same(monkeypatch) -> None:
    model, x = network(), torch.randn(3, 2, 8, 8)
    called: list[torch.Size] = []

    class Kernel:
        @staticmethod
        def forward(images: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            called.append(images.shape)
            return nn.functional.max_pool2d((images + bias[:, None, None]).relu(), 2)

    assert with_pooling(model) is model or torch.cuda.is_available()  # there is no Triton without CUDA
    monkeypatch.setattr("wafl.tasks.gpu.kernels._kernel", lambda: Kernel)
    pooling = with_pooling(model)
    assert isinstance(pooling, Pooling)
    assert list(pooling.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(pooling(x), model(x), atol=1e-6, rtol=0)  # here, a convolution adds its bias itself
    assert called == [(3, 4, 8, 8)]

    seen: list[torch.Tensor] = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))  # someone watches the ReLU
    pooling(x)
    assert len(called) == len(seen) == 1


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(2)], ids=str
)
def test_other_poolings_are_left_alone(pool: nn.Module, monkeypatch) -> None:
    monkeypatch.setattr("wafl.tasks.gpu.kernels._kernel", lambda: object())
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), pool)
    assert with_pooling(model) is model
