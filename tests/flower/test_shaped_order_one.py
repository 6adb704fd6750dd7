"""Nodes give the embedded numbers in the W_1 ball of the differences between clients."""

from __future__ import annotations

import pytest

from tests.flower.conftest import Stage
from tests.flower.runs import BASE, assert_same, only


@pytest.mark.slow
def test_a_shaped_ball_of_order_one_gives_the_embedded_numbers(stage: Stage) -> None:
    experiment = only({"method": "WAFL", "cost_matrix": "clients", "radius": 0.5, "power": 1, "rounds": 3})
    grid = stage.grid(experiment)
    stage.train({**experiment, "flower": {**BASE["flower"], "nodes": len(grid.hosts)}}, grid)
    assert_same(stage.study, stage.embedded(experiment))
    assert any(seen.kind == "query.means" for seen in grid.seen)
