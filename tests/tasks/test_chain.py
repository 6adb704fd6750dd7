"""The derivatives of a chain of layers have the bits of autograd."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from wafl.tasks.losses import CrossEntropy, SquaredError, value_and_slope
from wafl.tasks.structure.sequence import ELEMENTWISE, Chain
from wafl.tasks.structured import LayeredTask, make_task

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
    values, gradient = task.losses_and_gradient(params, x, y, weight)
    assert torch.equal(values, losses)
    assert torch.equal(gradient, torch.autograd.grad((weight * losses).sum(), point)[0])
    losses = task.losses(params, moved, y)
    values, gradient = task.input_gradient(params, x, y)
    assert torch.equal(values, losses)
    assert torch.equal(gradient, torch.autograd.grad(losses.sum(), moved)[0])


def test_a_forward_pass_that_was_kept_gives_the_bits_of_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    task = make_task(nn.Sequential(nn.Flatten(), nn.Linear(192, 9), nn.Tanh(), nn.Linear(9, 3)))
    params = 0.3 * torch.randn(2, task.num_params, generator=draw)
    x, y = torch.randn(2, 7, 3, 8, 8, generator=draw), torch.randint(3, (2, 7), generator=draw)
    weight = torch.rand(2, 7, generator=draw)
    wanted = task.outputs(params, x), *task.losses_and_gradient(params, x, y, weight)
    kept = task.forward(params, x)
    monkeypatch.setattr(Chain, "forward", None)
    results = task.outputs(params, kept), *task.losses_and_gradient(params, kept, y, weight)
    assert all(map(torch.equal, results, wanted))
    assert torch.equal(task.losses(params, kept, y), wanted[1])
    assert kept.dense() is x


@pytest.mark.parametrize("loss", [CrossEntropy(), SquaredError()], ids=lambda loss: loss.name)
def test_the_slope_of_a_weighted_loss_is_that_of_autograd(loss: CrossEntropy | SquaredError) -> None:
    draw = torch.Generator().manual_seed(1)
    outputs = 30.0 * torch.randn(2, 9, 4, generator=draw)
    y = torch.randint(4, (2, 9), generator=draw) if loss.labels == "classes" else torch.randn(2, 9, 4, generator=draw)
    weight = torch.rand(2, 9, generator=draw)
    point = outputs.clone().requires_grad_()
    values = loss.value(point, y)
    result, slope = value_and_slope(loss, outputs, y, weight)
    assert torch.equal(result, values)
    assert torch.equal(slope, torch.autograd.grad((weight * values).sum(), point)[0])
