"""What the checker knows of layers, and what it proves of 1-Lipschitz networks, against the layers' matrices."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.models.layers import LAYERS, operator
from tests.promises.files import publish
from wafl.models.layers import LipschitzConv2d, LipschitzLinear, MaxMin, NormalizedLinear
from wafl.promises.known import Ball, Known, known
from wafl.promises.quantities import largest_surrogate, quantity_of, surrogates
from wafl.tasks.losses import CrossEntropy, OutputLoss
from wafl.theory.constants.layer_by_layer import last_layer

CONVOLUTIONS = {
    "plain": (nn.Conv2d(2, 4, 3, padding=1), 0.5),
    "strided": (nn.Conv2d(3, 4, 3, stride=2), 0.5),
    "patches": (nn.Conv2d(3, 8, 2, stride=2), 1.0 - 1e-6),
    "dilated": (nn.Conv2d(2, 2, 3, dilation=2, padding=2), 0.4),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2, padding=2), 0.5),
    "one tap": (nn.Conv2d(3, 5, 1), 1.0 - 1e-6),
}
MARGIN = wafl.MarginLoss(0.5, 0.25)


def slope_of(layer: nn.Module) -> float:
    result = known(nn.Sequential(layer, nn.Flatten(), nn.Linear(1, 2)), CrossEntropy())
    assert result is not None
    return result.layers[0].slope


def test_weights_that_are_in_no_digest_are_not_known() -> None:
    layer = nn.Linear(2, 3)
    assert known(nn.Sequential(layer), CrossEntropy()) is not None
    weight = layer.weight.detach()
    del layer.weight
    layer.weight = weight  # pyright: ignore[reportAttributeAccessIssue]
    assert known(nn.Sequential(layer), CrossEntropy()) is None


def test_weights_that_are_buffers_or_no_numbers_are_not_known() -> None:
    layer = nn.Linear(2, 3)
    weight = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", weight)
    assert known(nn.Sequential(layer), CrossEntropy()) is None
    for value in (math.nan, math.inf):
        layer = nn.Linear(2, 3)
        nn.init.constant_(layer.weight, value)
        assert known(nn.Sequential(layer), CrossEntropy()) is None


def test_a_layer_with_a_call_of_its_own_is_not_known() -> None:
    """What ``compile`` leaves on a layer is called in place of the layer, and copies of the layer do not have it."""
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    assert known(model, CrossEntropy()) is not None
    model[1]._compiled_call_impl = lambda x: 100.0 * x  # pyright: ignore
    assert known(model, CrossEntropy()) is None


def test_a_convolution_is_as_steep_as_the_filters_that_it_uses() -> None:
    layer = nn.Conv2d(1, 1, 1, padding=1).double()
    layer.weight = nn.Parameter(torch.ones(1, 1, 3, 3, dtype=torch.float64))
    norm = float(torch.linalg.matrix_norm(operator(layer, (1, 6, 5)), ord=2))
    assert norm <= slope_of(layer)
    result = last_layer(nn.Sequential(layer, nn.Flatten(), nn.Linear(1, 2)))
    assert result is not None
    assert norm <= result[1].slope


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_no_convolution_is_steeper_than_the_checker_says(kind: str) -> None:
    layer, share = CONVOLUTIONS[kind]
    shape = (layer.in_channels, 6, 5)
    norm = float(torch.linalg.matrix_norm(operator(layer.double(), shape), ord=2))
    assert norm <= slope_of(layer) <= norm / share


@pytest.mark.parametrize("scale", [1e-3, 1e4])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_that_rescale_their_weights_are_not_steeper_than_one(kind: str, scale: float) -> None:
    make, shape = LAYERS[kind]
    torch.manual_seed(0)
    layer = make().double()
    nn.init.normal_(layer.weight, std=scale)  # type: ignore[arg-type]
    norm = float(torch.linalg.matrix_norm(operator(layer, shape), ord=2))
    assert norm <= slope_of(layer) <= 1.0 + 1e-8


def test_a_layer_that_rescales_in_a_way_of_its_own_counts_with_the_weights_that_it_uses() -> None:
    model = nn.Sequential(LipschitzLinear(2, 4), MaxMin(), NormalizedLinear(4, 2))
    assert known(model, CrossEntropy()) is not None
    model[0].rescale = lambda weight: 10.0 * weight
    assert known(model, CrossEntropy()) is None

    class Own(LipschitzLinear):
        def rescale(self, weight: Tensor) -> Tensor:
            return 10.0 * weight

    own = known(nn.Sequential(Own(2, 4), MaxMin(), NormalizedLinear(4, 2)), CrossEntropy())
    assert own is not None, "its forward uses the weights that its own method returns"
    assert own.layers[0].slope == pytest.approx(10.0), "of an orthogonal matrix"


def test_layers_that_share_their_weights_are_rescaled_once_each() -> None:
    first, second = LipschitzLinear(4, 4), LipschitzLinear(4, 4)
    nn.init.normal_(first.weight)
    second.weight = first.weight
    model = nn.Sequential(first, MaxMin(), second, first, NormalizedLinear(4, 3)).double()
    result, x = known(model, CrossEntropy()), torch.randn(5, 4, dtype=torch.float64)
    assert result is not None
    torch.testing.assert_close(result.plain(x), model(x), rtol=1e-13, atol=1e-13)


def plane(loss: OutputLoss) -> Known:
    torch.manual_seed(1)
    model = nn.Sequential(LipschitzLinear(2, 8), MaxMin(), LipschitzLinear(8, 4), MaxMin(), NormalizedLinear(4, 3))
    for layer in model:
        if not isinstance(layer, MaxMin):
            nn.init.normal_(layer.weight)  # type: ignore[arg-type]
    result = known(model, loss)
    assert result is not None
    return result


LINE = torch.linspace(-3.0, 3.0, 121, dtype=torch.float64)
MOVES = torch.cartesian_prod(LINE, LINE)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("norm", [1, 2, math.inf])
@pytest.mark.parametrize("loss", [CrossEntropy(), MARGIN, wafl.MarginLoss(2.0, 3.0)])
def test_no_move_of_a_grid_gains_more(loss: OutputLoss, norm: float, linear: bool) -> None:
    model, ball = plane(loss), Ball(quantity_of("loss"), norm, 2)
    if linear:
        line = known(nn.Sequential(nn.Linear(2, 3)), loss)
        assert line is not None
        model = line
    x, y = torch.rand(12, 2, dtype=torch.float64), torch.arange(12) % 3
    moved = model.plain((x[:, None] + MOVES).flatten(0, 1))
    values = loss.value(moved, y.repeat_interleave(len(MOVES))).view(len(x), -1)
    for gamma in (0.05, 0.3, 2.0):
        reached = (values - gamma * torch.linalg.vector_norm(MOVES, ord=norm, dim=1).square()).amax(1)
        result = surrogates(model, ball, x, y, [gamma])[0]
        assert bool((reached <= result).all())
        assert float(reached.max()) <= largest_surrogate(model, ball, (2,), (0.0, 1.0), gamma)
    if linear and norm == 2:
        assert float((result - reached).mean()) < 0.02, "and it is not far above"


def images() -> tuple[nn.Sequential, wafl.Federation]:
    rng, draws = np.random.default_rng(0), torch.manual_seed(0)
    pairs = [(rng.uniform(size=(24, 1, 4, 4)), rng.integers(0, 3, 24)) for _ in range(3)]
    layers = [nn.PixelUnshuffle(2), LipschitzConv2d(4, 6, 3), MaxMin(), nn.Flatten(), NormalizedLinear(24, 3)]
    model = nn.Sequential(*layers).double()
    for layer in (model[1], model[4]):
        nn.init.normal_(layer.weight, generator=draws)  # type: ignore[arg-type]
    with torch.no_grad():  # labels that are mostly right, so that there is something to flip
        pairs = [(x, np.where(rng.random(24) < 0.9, model(torch.from_numpy(x)).argmax(1).numpy(), y)) for x, y in pairs]
    return model, wafl.Federation.from_arrays(pairs, bounds=(0.0, 1.0), num_classes=3)


def flipped(distance: np.ndarray, radius: float) -> float:
    """The largest share of examples that a budget of ``radius^2`` takes over the boundary, a part of the last one."""
    left, share, count = radius**2, 0.0, len(distance)
    for cost in np.sort(distance) ** 2 / count:
        part = 1.0 if cost <= left else left / cost
        share, left = share + part / count, left - part * cost
    return share


def test_a_promised_error_rate_is_that_of_the_layers_matrices(tmp_path: Path) -> None:
    model, clients = images()
    x, y = (torch.cat([clients.train.of(index)[part] for index in range(3)]) for part in (0, 1))
    fold, wide = operator(model[0], (1, 4, 4)).numpy(), operator(model[1], (4, 2, 2)).numpy()
    bias = np.repeat(model[1].bias.detach().numpy(), 4)
    rows = model[4].weight.detach().numpy()
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    hidden = (x.double().flatten(1).numpy() @ fold.T) @ wide.T + bias
    first, second = hidden[:, :12], hidden[:, 12:]
    last = np.concatenate([np.maximum(first, second), np.minimum(first, second)], 1)
    scores = last @ rows.T + model[4].bias.detach().numpy()
    lead = scores[np.arange(len(y)), y][:, None] - scores
    apart = np.linalg.norm(rows[y][:, None] - rows, axis=2)
    apart[np.arange(len(y)), y] = 1e-300
    lead[np.arange(len(y)), y] = 1.0
    distance = (lead / apart).min(1).clip(0.0)
    radii = [0.0, 0.05, 0.2]
    promise = publish(model, clients, radii=radii, metric="error")
    for radius in radii:
        # The norm of the convolution is between the norm of its matrix on these images and 1.
        least = flipped(distance / np.linalg.norm(wide, ord=2), radius)
        assert least * (1.0 - 1e-9) <= promise.values[radius] <= flipped(distance, radius) * (1.0 + 1e-4) + 1e-9
    promise.save(tmp_path / "certificate.json")
    assert wafl.verify(tmp_path / "certificate.json", model=model, data=clients).recomputed


@pytest.mark.parametrize("loss", ["cross_entropy", MARGIN])
@pytest.mark.parametrize("options", [{}, {"norm": math.inf}, {"power": 1}, {"metric": "error"}], ids=str)
def test_what_is_published_of_such_networks_is_what_a_search_certifies(options, loss, tmp_path: Path) -> None:
    model, clients = images()
    radii = [0.0, 0.02, 0.1]
    promise = publish(model, clients, radii=radii, loss=loss, **options)
    rows = wafl.certify(model, clients, radii=radii, loss=loss, achieved=False, **options)
    for value, row in zip(promise.values.values(), rows, strict=True):
        assert value == pytest.approx(row.best, rel=0.01)
    promise.save(tmp_path / "certificate.json")
    checked = wafl.verify(tmp_path / "certificate.json", model=model, data=clients, loss=loss)
    assert checked.recomputed
    other = wafl.MarginLoss(5.0, 1.0)  # every loss is larger
    if "metric" not in options:
        assert not wafl.verify(tmp_path / "certificate.json", model=model, data=clients, loss=other).ok


def test_the_sizes_of_maxmin_are_those_of_the_larger_of_a_pair() -> None:
    """Of 1 and -5 the smaller is -5, however large the first may be."""
    model = known(nn.Sequential(MaxMin(), nn.Linear(2, 2)), CrossEntropy())
    assert model is not None
    assert model.layers[0].sizes(torch.tensor([[1.0, 5.0]])).tolist() == [[5.0, 5.0]]


def scaled(scales: list[float], activation: type[nn.Module]) -> nn.Sequential:
    """A network whose weights were multiplied layer by layer, without biases."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for index, scale in enumerate(scales):
        layer = nn.Linear(2 if index == 0 else 4, 2 if index + 1 == len(scales) else 4, bias=False).double()
        nn.init.normal_(layer.weight, std=scale)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


FORGED = {
    "lost in a square": ([1e200, 1e-200], False),
    "lost in the first square": ([1e-200, 1e200, 1.0], False),
    "lost in a product": ([1e-90, 1e-90, 1e-90, 1e-90, 1e90, 1e90, 1e90, 1e90, 1.0], True),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_steep_network_of_tiny_and_huge_weights_is_not_promised_to_be_flat(kind: str) -> None:
    """Numbers below 1e-154 have no square: such networks seemed to have a slope of 0, and were promised everything."""
    scales, readable = FORGED[kind]
    model = scaled(scales, nn.ReLU)
    result = known(model, CrossEntropy())
    assert (result is not None) == readable
    x = torch.randn(1, 2, dtype=torch.float64)
    steep = torch.linalg.matrix_norm(torch.autograd.functional.jacobian(lambda at: model(at)[0], x)[:, 0], ord=2)
    assert result is None or float(steep) <= result.widest(2, 2) < math.inf


def test_slopes_that_overflow_prove_no_lead() -> None:
    """Units are saturated, so the outputs are finite; how far each example is from its boundary is not a number."""
    model = known(scaled([1e90, 1e90, 1e90, 1e90, 1.0], nn.Tanh), CrossEntropy())
    assert model is not None
    x = torch.rand(8, 2, dtype=torch.float64)
    assert bool(torch.isfinite(model.plain(x)).all())
    for gamma in (None, 1.0):
        for y in (torch.zeros(8, dtype=torch.int64), torch.ones(8, dtype=torch.int64)):
            result = surrogates(model, Ball(quantity_of("error"), 2, 2), x, y, [gamma])
            assert not bool((result < 1.0).any())


def test_a_model_in_which_examples_meet_is_not_proven(tmp_path: Path) -> None:
    """Without an axis of channels, torch takes the examples of a batch for the channels of one image."""
    rng = np.random.default_rng(0)
    pairs = [(rng.uniform(size=(16, 3, 3)), np.arange(16) % 2)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0.0, num_classes=2)
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(1, 2)).double()
    assert model(clients.train.of(0)[0].double()).shape == (16, 2)
    with pytest.raises((ValueError, wafl.PreconditionError)):
        publish(model, clients, radii=[0.1])
