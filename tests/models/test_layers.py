"""1-Lipschitz layers against the matrices that they stand for, and how often their weights are rescaled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.models.layers import LAYERS, operator
from tests.oracles import plain
from wafl.models import layers
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear
from wafl.tasks.modes.one_by_one import side_by_side
from wafl.tasks.problem import Problem
from wafl.tasks.structured import make_task
from wafl.tasks.task import Traits


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_has_a_norm_above_one(name: str, scale: float) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make().double()
    assert torch.linalg.matrix_norm(operator(layer, shape), ord=2) == pytest.approx(1.0), "it begins orthogonal"
    nn.init.normal_(layer.weight, std=scale)  # type: ignore[arg-type]
    norm = float(torch.linalg.matrix_norm(operator(layer, shape), ord=2))
    assert 0.3 < norm <= 1.0 + 1e-12


def test_a_convolution_is_rescaled_as_in_the_paper() -> None:
    layer = LipschitzConv2d(3, 6).double()
    nn.init.normal_(layer.weight)
    turned = layer.weight.detach().transpose(0, 1)
    sums = nn.functional.conv2d(turned, turned, padding=2).abs().sum((1, 2, 3))
    torch.testing.assert_close(layer.rescale(layer.weight), layer.weight * sums.rsqrt()[None, :, None, None])


def test_channels_that_are_zero_stay_zero() -> None:
    layer = LipschitzLinear(3, 3)
    nn.init.zeros_(layer.weight)
    result = layer.rescale(layer.weight)
    result.sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(result, torch.zeros(3, 3))
    assert bool(torch.isfinite(layer.weight.grad).all())


def test_the_rows_of_a_last_layer_have_length_one() -> None:
    layer = NormalizedLinear(7, 4)
    torch.testing.assert_close(operator(layer.double(), (7,)).norm(dim=1), torch.ones(4, dtype=torch.float64))


def test_maxmin_sorts_each_pair() -> None:
    x = torch.randn(5, 6, 2, 2)
    result = MaxMin()(x)
    for channel in range(3):
        pair = torch.stack([x[:, channel], x[:, channel + 3]])
        assert torch.equal(result[:, channel], pair.amax(0))
        assert torch.equal(result[:, channel + 3], pair.amin(0))


def test_maxmin_of_channels_that_have_no_partner_is_refused() -> None:
    """The second of 3 channels would be paired twice, and then the layer is steeper than 1."""
    with pytest.raises(ValueError, match="there are 3: give the layer before an even number"):
        MaxMin()(torch.zeros(1, 3))


class Own(nn.Module):
    """A module of one's own with such layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = LipschitzConv2d(2, 4), MaxMin(), NormalizedLinear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)).flatten(1))


def examples(count: int = 4, size: int = 12) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(1)
    return [
        (torch.rand(size, 2, 3, 3, generator=draws, dtype=torch.float64), torch.arange(size) % 3) for _ in range(count)
    ]


def drawn(batched: bool = True) -> tuple[Problem, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    task = make_task(Own().double())
    task.traits = Traits(busy=not batched)
    start = task.initial()
    params = torch.stack([start, start + 0.1 * torch.randn_like(start), 2.0 * start])
    x, y = (torch.stack(parts) for parts in zip(*examples(3), strict=True))
    return Problem(task, params), x, y, torch.rand(y.shape, dtype=torch.float64)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", ["together", "in turn", "side by side"])
def test_weights_that_are_rescaled_once_give_the_same_gradients(
    way: str, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, x, y, share = drawn(batched=way == "together")
    params = problem.params[1:2].expand(3, -1) if shared else problem.params
    problem = Problem(problem.task, params)
    task = problem.task
    expected = [*task.losses_and_gradient(params, x, y, share), *task.input_gradient(params, x, y)]
    calls: list[int] = []
    rescale = layers.almost_orthogonal
    monkeypatch.setattr(layers, "almost_orthogonal", lambda weight: calls.append(len(weight)) or rescale(weight))
    if way == "side by side":
        monkeypatch.setattr("wafl.tasks.modes.one_by_one._streams", lambda count: [])
        with side_by_side():
            results = [*problem.loss_and_descent(x, y, share), *problem.loss_and_gradient(x, y)]
    else:
        results = [*problem.loss_and_descent(x, y, share), *problem.loss_and_gradient(x, y)]
    assert calls == [1 if shared else 3], "once for all calls, and once for all lanes that share their weights"
    for mine, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)


def test_weights_that_another_layer_reads_are_rescaled_in_every_call() -> None:
    layer, other = LipschitzLinear(4, 4), nn.Linear(4, 4)
    other.weight = layer.weight
    task = make_task(nn.Sequential(layer, other).double())
    assert not task.rescales
    x = torch.randn(1, 2, 4, dtype=torch.float64)
    outputs = Problem(task, task.initial()[None]).outputs(x)
    torch.testing.assert_close(outputs[0], other(layer(x[0])))


def test_a_network_trains_as_in_a_plain_loop() -> None:
    torch.manual_seed(0)
    model, pairs = Own().double(), examples()
    timing = {"rounds": 2, "local_epochs": 2, "batch_size": 5, "learning_rate": 0.1, "seed": 3}
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    run = wafl.fit(model, clients, wafl.WAFL(gamma=2.0, tolerance=0, steps=2), **timing)  # type: ignore[arg-type]
    expected = plain.train(model, pairs, **timing, gamma=2.0, steps=2)  # type: ignore[arg-type]
    for name, value in expected.items():
        torch.testing.assert_close(run.params[name], value, rtol=0, atol=1e-12)
        assert not torch.equal(run.params[name], model.state_dict()[name])
