"""What is published about labels is nearly as tight as a certificate of each label's examples alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import wafl
from tests.promises.files import publish
from wafl.promises.known import Ball, known
from wafl.promises.published_labels import certified_loss
from wafl.promises.quantities import quantity_of, steepest_slope
from wafl.tasks.losses import CrossEntropy


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [False, True], ids=["linear", "relu"])
def test_a_label_is_certified_nearly_as_tightly_as_alone(hidden: bool) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = rng.normal(size=(60, 2)) + np.array([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0]])[y]
    torch.manual_seed(0)
    layers = [nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)] if hidden else [nn.Linear(2, 3)]
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(3.0)
    clients = wafl.Federation.from_arrays([(x, y)], test_fraction=0.0, num_classes=3)
    published, proof = publish(model, clients, radii=[0.3, 3.0], points=2).parts.labels, known(model, CrossEntropy())
    assert published is not None
    assert proof is not None
    slope = steepest_slope(proof, Ball(quantity_of("loss"), 2, 2), 2)
    for each in published.labels:
        chosen = y == each.label
        alone = wafl.Federation.from_arrays([(x[chosen], y[chosen])], test_fraction=0.0, num_classes=3)
        for radius, value in publish(model, alone, radii=[0.3, 1.0, 3.0]).values.items():
            result = certified_loss(each, published.gammas, slope, radius)
            assert value * (1.0 - 1e-6) <= result <= 1.05 * value + 0.01
