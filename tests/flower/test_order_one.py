"""The W_1 ball without bounds in a Flower app of one's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord

import wafl
from tests.flower.test_strategy import Grid, batches, client_of, flower_task, linear
from wafl.flower import WAFL
from wafl.objectives.ball.order_one import FIRST_EXCESS

__all__ = ["flower_task"]  # the fixture without which no message can be made


@pytest.mark.parametrize("label_cost", [0.2, math.inf])
def test_a_whole_run_in_a_ball_of_order_1_matches_the_engine(label_cost: float) -> None:
    """What gamma exceeds the slope by is learned by the strategy, which does not know the slope."""
    parts = [batches(size, seed=size, dtype=torch.float32)[0] for size in (4, 9, 6)]
    clients = wafl.Federation.from_arrays(parts, test_fraction=0, num_classes=4)
    method: dict[str, Any] = {"radius": 0.1, "power": 1}
    run = wafl.fit(
        linear().float(), clients, wafl.WAFL(**method, label_cost=label_cost), rounds=6, local_epochs=1,
        batch_size=None, learning_rate=0.5, init=dict(linear().float().state_dict()),
    )  # fmt: skip
    strategy = WAFL(**method, label_cost=label_cost, fraction_evaluate=0.0)
    grid: Any = Grid(*(client_of([part], lambda: linear().float()) for part in parts))
    initial, config = ArrayRecord(linear().float().state_dict()), ConfigRecord({"lr": 0.5})
    result = strategy.start(grid, initial, 6, train_config=config)
    for name, value in result.arrays.to_torch_state_dict().items():
        torch.testing.assert_close(value, run.params[name], rtol=0, atol=1e-5)
    assert strategy.gamma < 1e-6 if math.isinf(label_cost) else strategy.gamma not in (0.0, FIRST_EXCESS)
