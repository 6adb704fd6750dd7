"""The derivatives of a chain of layers have the bits of autograd, but for those of convolutions."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn

from wafl.core.chain import ELEMENTWISE, Chain
from wafl.core.layout import Layout
from wafl.core.losses import CrossEntropy, SquaredError, value_and_slope
from wafl.core.structured import ConvolvedTask, LayeredTask, make_task
from wafl.core.task import Task, Traits

OPTIONS = (nn.LeakyReLU(0.3), nn.ELU(0.7), nn.GELU("tanh"), nn.Softplus(2.0, 1.0))
FUNCTIONS = (*(kind() for kind in ELEMENTWISE), *OPTIONS)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_gradients_are_those_of_autograd(function: nn.Module, lanes: int) -> None:
    draw = torch.Generator().manual_seed(0)
    again = copy.deepcopy(function)
    model = nn.Sequential(
        nn.Linear(4, 5), function, nn.Flatten(), nn.Linear(15, 20, bias=False), again, nn.Linear(20, 3)
    )
    task = make_task(model)
    assert isinstance(task, LayeredTask)
    params = torch.randn(lanes, task.num_params, generator=draw)
    x, y = torch.randn(lanes, 7, 3, 4, generator=draw), torch.randint(3, (lanes, 7), generator=draw)
    weight = torch.rand(lanes, 7, generator=draw)

    point, moved = params.clone().requires_grad_(), x.clone().requires_grad_()
    losses = task.losses(point, x, y)
    found, gradient = task.losses_and_gradient(params, x, y, weight)
    assert torch.equal(found, losses)
    assert torch.equal(gradient, torch.autograd.grad((weight * losses).sum(), point)[0])
    losses = task.losses(params, moved, y)
    found, gradient = task.input_gradient(params, x, y)
    assert torch.equal(found, losses)
    assert torch.equal(gradient, torch.autograd.grad(losses.sum(), moved)[0])


CONVOLUTIONS = {
    "first of all": [nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)],
    "few channels, then many": [
        *(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 5, (3, 2), padding=(2, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(150, 3)),
    ],
    "strides and groups": [
        *(nn.MaxPool2d(3, stride=1, padding=1, dilation=1), nn.Conv2d(3, 18, 3, padding=3), nn.ELU()),
        *(nn.Conv2d(18, 6, 3, stride=2, dilation=2, groups=3, bias=False), nn.MaxPool2d(2, ceil_mode=True)),
        *(nn.Flatten(), nn.Linear(24, 3)),
    ],
}


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-4), (torch.float64, 1e-11)], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_of_convolutions_are_those_of_autograd_but_for_rounding(
    name: str, dtype: torch.dtype, rtol: float
) -> None:
    draw = torch.Generator().manual_seed(0)
    model = copy.deepcopy(nn.Sequential(*CONVOLUTIONS[name])).to(dtype)
    task = make_task(model)
    task.traits = Traits(busy=True)
    assert isinstance(task, ConvolvedTask)
    params = 0.3 * torch.randn(2, task.num_params, generator=draw, dtype=dtype)
    x, y = torch.randn(2, 7, 3, 8, 8, generator=draw, dtype=dtype), torch.randint(3, (2, 7), generator=draw)
    weight = torch.rand(2, 7, generator=draw, dtype=dtype)
    losses, gradient = task.losses_and_gradient(params, x, y, weight)
    values, slopes = task.input_gradient(params, x, y)
    for lane in range(2):
        nn.utils.vector_to_parameters(params[lane], model.parameters())
        moved = x[lane].clone().requires_grad_()
        wanted = nn.functional.cross_entropy(model(moved), y[lane], reduction="none")
        close = partial(torch.testing.assert_close, rtol=rtol, atol=rtol)
        close(losses[lane], wanted.detach())
        close(values[lane], wanted.detach())
        close(task.outputs(params, x)[lane], model(x[lane]).detach())
        close(slopes[lane], torch.autograd.grad(wanted.sum(), moved, retain_graph=True)[0])
        found = torch.autograd.grad((weight[lane] * wanted).sum(), list(model.parameters()))
        close(gradient[lane], torch.cat([value.flatten() for value in found]))


@pytest.mark.parametrize("name", ["layers", "convolutions"])
def test_a_forward_pass_that_was_kept_gives_the_bits_of_a_new_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(192, 9), nn.Tanh(), nn.Linear(9, 3)]
    task = make_task(nn.Sequential(*(layers if name == "layers" else CONVOLUTIONS["few channels, then many"])))
    task.traits = Traits(busy=name == "convolutions")
    params = 0.3 * torch.randn(2, task.num_params, generator=draw)
    x, y = torch.randn(2, 7, 3, 8, 8, generator=draw), torch.randint(3, (2, 7), generator=draw)
    weight = torch.rand(2, 7, generator=draw)
    wanted = task.outputs(params, x), *task.losses_and_gradient(params, x, y, weight)
    kept = task.forward(params, x)
    monkeypatch.setattr(Chain, "forward", None)
    found = task.outputs(params, kept), *task.losses_and_gradient(params, kept, y, weight)
    assert all(map(torch.equal, found, wanted))
    assert torch.equal(task.losses(params, kept, y), wanted[1])
    assert kept.dense() is x


def test_small_convolutions_are_those_of_any_model() -> None:
    draw = torch.Generator().manual_seed(0)
    model = nn.Sequential(*CONVOLUTIONS["first of all"])
    task, same = make_task(model), Task(model, CrossEntropy(), Layout.of(model))
    params, x = torch.randn(2, task.num_params, generator=draw), torch.randn(2, 4, 3, 8, 8, generator=draw)
    y, weight = torch.randint(3, (2, 4), generator=draw), torch.rand(2, 4, generator=draw)
    assert task.traits.batched
    assert not task.steady
    assert torch.equal(task.outputs(params, x), same.outputs(params, x))
    for ours, theirs in (
        (task.losses_and_gradient(params, x, y, weight), same.losses_and_gradient(params, x, y, weight)),
        (task.input_gradient(params, x, y), same.input_gradient(params, x, y)),
    ):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(1, 2, 3, padding="same"), nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Conv2d(1, 2, 3)],
    ids=str,
)
def test_a_convolution_of_another_kind_is_left_to_autograd(layer: nn.Conv2d) -> None:
    if layer.padding == (0, 0):
        layer.weight.requires_grad_(False)
    assert type(make_task(nn.Sequential(layer, nn.Flatten(), nn.Linear(8, 2)))) is Task


@pytest.mark.parametrize("loss", [CrossEntropy(), SquaredError()], ids=lambda loss: loss.name)
def test_the_slope_of_a_weighted_loss_is_that_of_autograd(loss: CrossEntropy | SquaredError) -> None:
    draw = torch.Generator().manual_seed(1)
    outputs = 30.0 * torch.randn(2, 9, 4, generator=draw)
    y = torch.randint(4, (2, 9), generator=draw) if loss.labels == "classes" else torch.randn(2, 9, 4, generator=draw)
    weight = torch.rand(2, 9, generator=draw)
    point = outputs.clone().requires_grad_()
    values = loss.value(point, y)
    found, slope = value_and_slope(loss, outputs, y, weight)
    assert torch.equal(found, values)
    assert torch.equal(slope, torch.autograd.grad((weight * values).sum(), point)[0])
