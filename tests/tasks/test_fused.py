"""Networks whose convolutions are computed in few kernels have the numbers of their layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wafl.tasks import structured
from wafl.tasks.gpu.kernels import fuse
from wafl.tasks.gpu.precision import computing
from wafl.tasks.layout import Layout
from wafl.tasks.losses import output_loss
from wafl.tasks.modes import one_by_one
from wafl.tasks.modes.one_by_one import side_by_side
from wafl.tasks.problem import Problem
from wafl.tasks.structured import FusedTask
from wafl.tasks.task import Task, Traits

LANES, BATCH = 2, 3


class Layers:
    """The kernels by torch's own layers, one lane after another."""

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        side = weight.shape[-1]
        sums = [
            nn.functional.conv2d(images.bfloat16(), filters, offset, padding=side // 2)
            for images, filters, offset in zip(x, weight, bias, strict=True)
        ]
        pooled, index = nn.functional.max_pool2d(torch.stack(sums).flatten(0, 1).relu(), 2, return_indices=True)
        shape = *x.shape[:2], *pooled.shape[1:]
        return pooled.view(shape), torch.where(pooled > 0, index, -1).view(shape)

    @staticmethod
    def backward(slope: torch.Tensor, choice: torch.Tensor, weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        taken = choice.flatten(3)
        full = torch.zeros(*slope.shape[:3], like.shape[3] * like.shape[4], dtype=slope.dtype)
        full.scatter_(3, taken.clamp(min=0), torch.where(taken >= 0, slope.flatten(3), 0))
        full = full.view(*slope.shape[:3], *like.shape[3:])
        side = weight.shape[-1]
        gradients = [
            nn.functional.conv_transpose2d(at, filters, padding=side // 2)
            for at, filters in zip(full, weight, strict=True)
        ]
        return torch.stack(gradients).to(like.dtype)


@pytest.fixture(autouse=True)
def layers_as_kernels(monkeypatch) -> None:
    monkeypatch.setattr(one_by_one, "_streams", lambda count: [])
    # These tensors are on no GPU, though the machine may have one.
    monkeypatch.setattr("wafl.tasks.gpu.kernels.kernels", lambda name: Layers if name.endswith("conv_kernel") else None)


def network(*, depth: int = 2, second: int = 32, pool: nn.Module | None = None, side: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(depth, 16, side, padding=side // 2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, second, 3, padding=1),
        nn.ReLU(),
        pool or nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 4, 12),
        nn.Tanh(),
        nn.Linear(12, 5),
    )


def problems(model: nn.Sequential) -> tuple[Problem, Problem]:
    """The problem as it is fused, and as it is for any model."""
    torch.manual_seed(1)
    fused = fuse(list(model))
    assert fused is not None
    loss, layout = output_loss("cross_entropy"), Layout.of(model)
    tasks = FusedTask(model, fused, loss, layout), Task(model, loss, layout)
    params = tasks[0].initial() + 0.05 * torch.randn(LANES, tasks[0].num_params)
    for task in tasks:
        task.traits = Traits(obstacle="these lanes go one after another")
    return Problem(tasks[0], params), Problem(tasks[1], params)


@pytest.mark.parametrize("depth", [2, 1], ids=["two channels", "gray images"])
def test_outputs_losses_and_gradients_are_those_of_the_layers(depth: int) -> None:
    fused, layered = problems(network(depth=depth))
    x, y = torch.randn(LANES, BATCH, depth, 8, 8), torch.arange(LANES * BATCH).view(LANES, -1) % 5
    with computing("bfloat16", torch.device("cpu")), side_by_side():
        torch.testing.assert_close(fused.outputs(x), layered.outputs(x), atol=4e-3, rtol=0)
        torch.testing.assert_close(fused.loss(x, y), layered.loss(x, y), atol=4e-3, rtol=0)
        (loss, slope), (expected, layered_slope) = fused.loss_and_gradient(x, y), layered.loss_and_gradient(x, y)
    torch.testing.assert_close(loss, expected, atol=4e-3, rtol=0)
    assert slope.dtype == torch.float32
    # Where two pixels of a window are equal but for rounding, either may be taken: most numbers agree, not all.
    assert (slope - layered_slope).abs().median() < 0.02 * layered_slope.abs().median()
    assert nn.functional.cosine_similarity(slope.flatten(), layered_slope.flatten(), 0) > 0.97


def test_only_captured_steps_of_a_reduced_precision_are_fused(monkeypatch) -> None:
    fused, layered = problems(network())
    monkeypatch.setattr(Layers, "forward", None)  # any call fails
    x, y = torch.randn(LANES, BATCH, 2, 8, 8), torch.arange(LANES * BATCH).view(LANES, -1) % 5
    with computing("float32", torch.device("cpu")), side_by_side():
        for one, other in zip(fused.loss_and_gradient(x, y), layered.loss_and_gradient(x, y), strict=True):
            torch.testing.assert_close(one, other, atol=0, rtol=0)
    fused, layered = problems(network())
    with computing("bfloat16", torch.device("cpu")):
        torch.testing.assert_close(fused.outputs(x), layered.outputs(x), atol=0, rtol=0)


def test_images_with_odd_sides_go_through_the_layers() -> None:
    fused = fuse(list(network()))
    assert fused is not None
    assert fused.takes(torch.zeros(1, 1, 2, 8, 12))
    assert not fused.takes(torch.zeros(1, 1, 2, 8, 10))  # 5 after the first pooling
    assert not fused.takes(torch.zeros(1, 1, 2, 8, 12, dtype=torch.float64))


@pytest.mark.parametrize(
    "model",
    [
        network(second=24),
        network(side=7),
        network(pool=nn.MaxPool2d(3)),
        nn.Sequential(nn.Conv2d(2, 16, 3, padding=1, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
    ],
    ids=["24 channels", "a side of 7", "a window of 3", "a stride", "no convolution"],
)
def test_other_networks_are_left_to_their_layers(model: nn.Sequential) -> None:
    assert fuse(list(model)) is None


def test_without_triton_nothing_is_fused(monkeypatch) -> None:
    monkeypatch.setattr("wafl.tasks.gpu.kernels.kernels", lambda name: None)
    assert fuse(list(network())) is None
    assert not isinstance(structured.make_task(network()), FusedTask)
