"""No certificate that is called proven lies below what an attack of our own reaches, whatever the numbers are like.

Networks of every kind that is proven, with weights, inputs and radii over many orders of magnitude, in every norm and
of both orders; with duplicates, ties, a single class, and clients that do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wafl
from tests.oracles import reached

Layers = Callable[[], list[nn.Module]]
CLASSES = 3
VECTOR, IMAGE = (4,), (1, 4, 4)
ARCHITECTURES: dict[str, tuple[tuple[int, ...], Layers]] = {
    "linear": (VECTOR, lambda: [nn.Linear(4, CLASSES)]),
    "linear without bias": (IMAGE, lambda: [nn.Flatten(), nn.Linear(16, CLASSES, bias=False)]),
    "regression": (VECTOR, lambda: [nn.Linear(4, 1)]),
    "regression of two": (VECTOR, lambda: [nn.Linear(4, 2)]),
    "tanh": (VECTOR, lambda: [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, CLASSES)]),
    "sigmoid": (VECTOR, lambda: [nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, CLASSES)]),
    "relu": (VECTOR, lambda: [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES)]),
    "deep": (
        VECTOR,
        lambda: [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, CLASSES)],
    ),
    "nested": (
        IMAGE,
        lambda: [nn.Flatten(), nn.Sequential(nn.Linear(16, 5), nn.Sigmoid()), nn.Identity(), nn.Linear(5, CLASSES)],
    ),
    "silu": (VECTOR, lambda: [nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, CLASSES)]),
    "max pooling": (
        IMAGE,
        lambda: [nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, CLASSES)],
    ),
    "strides": (
        IMAGE,
        lambda: [
            *(nn.Conv2d(1, 2, 3, stride=2, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()),
            nn.Linear(2, CLASSES),
        ],
    ),
}
KINDS = {"regression": "squared_error", "regression of two": "squared_error"}
ROWS = 5


@dataclass(frozen=True)
class Case:
    model: nn.Module
    x: Tensor
    y: Tensor
    share: list[float]
    """Of the two clients, who have half of the examples each."""
    radii: list[float]
    norm: float
    power: int

    @property
    def clients(self) -> wafl.Federation:
        half = len(self.x) // 2
        pairs = [(self.x[:half], self.y[:half]), (self.x[half:], self.y[half:])]
        classes = None if self.y.is_floating_point() else CLASSES
        return wafl.Federation.from_arrays(pairs, test_fraction=0.0, num_classes=classes)

    @property
    def shares(self) -> np.ndarray:
        half = len(self.x) // 2
        return np.repeat(np.array(self.share) / half, half)


def drawn(name: str, seed: int) -> Case:
    rng = np.random.default_rng([seed, *name.encode()])
    shape, layers = ARCHITECTURES[name]
    model = nn.Sequential(*layers()).double()
    for value in model.parameters():
        scale = 10.0 ** rng.uniform(-3.0, 6.0)
        value.data = torch.from_numpy(scale * rng.normal(size=tuple(value.shape)))
    last = model[-1].weight.data
    if rng.random() < 0.15 and len(last) > 1:
        last[1] = last[0]  # a tie
    if rng.random() < 0.15 and len(last) > 1:
        last[1] = last[0] + 10.0 ** rng.uniform(-14.0, -3.0) * last[1]
    x = rng.choice([1e-2, 1.0, 255.0]) * rng.normal(size=(6, *shape))
    if rng.random() < 0.3:
        x[1] = x[0]
    y = np.arange(6) % CLASSES if rng.random() < 0.8 else np.full(6, rng.integers(CLASSES))
    if name in KINDS:
        y = 10.0 ** rng.uniform(-3.0, 3.0) * rng.normal(size=(6, len(last)))
    radii = sorted(10.0 ** rng.uniform(-6.0, 8.0, ROWS))
    share = [1.0, 0.0] if rng.random() < 0.15 else [0.3, 0.7]
    norm, power = [1, 2, math.inf][rng.integers(3)], 1 if rng.random() < 0.25 else 2
    return Case(model, torch.from_numpy(x), torch.from_numpy(y), share, radii, norm, power)


def losses(outputs: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return (outputs - y).square().sum(-1)
    return nn.functional.cross_entropy(outputs, y, reduction="none")


def assert_never_below(name: str, seed: int) -> None:
    case = drawn(name, seed)
    found = wafl.certify(
        case.model,
        case.clients,
        radii=case.radii,
        norm=case.norm,
        power=case.power,
        client_weights=wafl.weights.fixed(case.share),
        loss=KINDS.get(name, "cross_entropy"),
        achieved=False,
    )
    assert found.proven or found.simple_proven
    places = reached.places(case.model, losses, case.x, case.y, case.radii, case.norm)
    # What float64 loses of outputs that are far larger than the loss.
    lost = 1e-13 * float(case.model(case.x).detach().abs().max())
    for row in found.rows:
        worst = places.worst_mean(case.shares, row.radius, case.power)
        for bound, proven in ((row.value, found.proven), (row.simple, found.simple_proven)):
            assert not proven or bound >= worst - 1e-9 * abs(worst) - lost, (name, seed, row, worst, case)


def assert_no_error_rate_below(seed: int) -> None:
    case = drawn("linear", seed)
    if case.y.unique().numel() == 1:
        return
    found = wafl.certify(
        case.model,
        case.clients,
        radii=case.radii,
        norm=case.norm,
        power=case.power,
        metric="error",
        client_weights=wafl.weights.fixed(case.share),
    )
    layer = case.model[0]
    outputs = layer(case.x).detach().numpy()
    places = reached.errors(layer.weight.detach().numpy(), outputs, case.y.numpy(), case.norm)
    for row in found.rows:
        worst = places.worst_mean(case.shares, row.radius, case.power)
        assert row.value >= worst - 1e-9, (seed, row, worst, case)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_attack_reaches_more_than_is_proven(name: str) -> None:
    assert_never_below(name, 1)


def test_moves_along_gradients_whose_squares_are_lost_cost_what_they_are_long() -> None:
    """A sigmoid network at its ends: the direction of a gradient of 1e-170 has a length of its own."""
    assert_never_below("sigmoid", 16)


def test_no_attack_reaches_a_larger_error_rate() -> None:
    assert_no_error_rate_below(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_attack_reaches_more_than_is_proven_of_many(name: str) -> None:
    for seed in range(2, 36):
        assert_never_below(name, seed)


@pytest.mark.slow
def test_no_attack_reaches_a_larger_error_rate_of_many() -> None:
    for seed in range(2, 36):
        assert_no_error_rate_below(seed)
