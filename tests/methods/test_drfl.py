"""DRFL: a ball around each client, and models that agree by ADMM."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import wafl


@pytest.mark.slow
def test_models_that_agree_by_admm_reach_the_optimum_of_all_clients_where_those_of_fedavg_do_not() -> None:
    generator = torch.Generator().manual_seed(4)
    parts = [
        (torch.randn(20, 2, generator=generator) + 2 * client, (torch.arange(20) + (torch.arange(20) < 12)) % 2)
        for client in range(3)
    ]
    clients = wafl.Federation.from_arrays(parts, test_fraction=0)
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    model, schedule = wafl.models.mlr(clients), {"local_steps": 20, "batch_size": None, "learning_rate": 0.1}

    def slope(method: wafl.Method, rounds: int) -> float:
        """The length of the gradient of the loss of all clients, at the trained model."""
        run = wafl.fit(model, clients, method, rounds=rounds, weight_decay=0.05, check_optimum=False, **schedule)
        params = [value.clone().requires_grad_() for value in run.params.values()]
        loss = nn.functional.cross_entropy(x @ params[0].T + params[1], y)
        loss = loss + 0.025 * sum(value.square().sum() for value in params)
        return float(torch.cat([each.flatten() for each in torch.autograd.grad(loss, params)]).norm())

    agreed = slope(wafl.FedAvg(local=wafl.local.consensus(0.5)), 150)
    assert agreed < 1e-4
    assert slope(wafl.FedAvg(), 150) > 10 * agreed


def test_balls_are_without_bounds_and_for_linear_models() -> None:
    clients = wafl.load_dataset("digits").partition(num_clients=4, labels_per_client=4, seed=0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    with pytest.raises(ValueError, match="known only for a linear model with cross-entropy"):
        wafl.fit(network, clients, wafl.DRFL(), rounds=1, local_steps=1)
    make: Any = wafl.DRFL
    with pytest.raises(TypeError, match=r"DRFL has no option 'bounds': use WAFL\(radius=..., power=1, local="):
        make(bounds=(0, 1))
