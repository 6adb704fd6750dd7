"""How many operators a local step takes: what a change of the machine cannot hide, and no change may raise unseen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import wafl

MOST: dict[str, int] = {
    "MLR, FedAvg": 13,
    "MLR, WAFL": 103,
    "MLR, WAFL, 10 full steps": 85,
    "MLR, WAFL, 3 steps of l_inf": 137,
    "MLP, FedAvg": 23,
    "CNN, FedAvg": 74,
    "MLP, WAFL, 3 full steps": 135,
    "MLP, FedPGM, 3 steps": 104,
}
"""What a step of each takes now; if it takes fewer, write that down here."""

METHODS: dict[str, wafl.Method] = {
    "MLR, FedAvg": wafl.FedAvg(),
    "MLR, WAFL": wafl.WAFL(gamma=50.0),
    "MLR, WAFL, 10 full steps": wafl.WAFL(gamma=50.0, steps=10, tolerance=0.0),
    "MLR, WAFL, 3 steps of l_inf": wafl.WAFL(gamma=500.0, norm=math.inf, steps=3, tolerance=0.0, bounds=(0.0, 1.0)),
    "MLP, FedAvg": wafl.FedAvg(),
    "CNN, FedAvg": wafl.FedAvg(),
    "MLP, WAFL, 3 full steps": wafl.WAFL(gamma=50.0, steps=3, tolerance=0.0),
    "MLP, FedPGM, 3 steps": wafl.FedPGM(steps=3),
}

MODELS: dict[str, Callable[[wafl.Federation], nn.Module]] = {
    "MLR": wafl.models.mlr,
    "MLP": lambda clients: nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)),
    "CNN": lambda clients: wafl.models.cnn(clients, channels=(2, 2)),
}


class Counting(TorchDispatchMode):
    """Counts the operators that torch is asked for, but not views, which compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operators(work: Callable[[], object]) -> int:
    with Counting() as counting:
        work()
    return counting.count


@pytest.mark.parametrize("name", MOST)
def test_a_local_step_takes_no_more_operators_than_it_did(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    shape = (1, 8, 8) if name.startswith("CNN") else (64,)
    pairs = [(torch.rand(32, *shape, generator=draw), torch.arange(32) % 4) for _ in range(3)]
    clients = wafl.Federation.from_arrays(pairs, test_fraction=0)
    torch.manual_seed(0)
    model = MODELS[name[:3]](clients)

    def train(steps: int) -> None:
        wafl.fit(model, clients, METHODS[name], rounds=1, local_steps=steps, batch_size=8)

    train(1)  # what torch does only once is not counted
    one, three = (operators(partial(train, steps)) for steps in (1, 3))
    assert (three - one) / 2 <= MOST[name]
