"""Networks of many architectures, random examples and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import wafl

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
