"""The nearest mixture on nodes: the weights of one place, from one mean and one histogram per client and round."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

import wafl
from tests.flower.conftest import Stage
from tests.oracles import flower_fakes as fakes
from wafl.base.errors import ConfigError, TooFewRepliesError
from wafl.flower.app import server
from wafl.flower.node.examples import CutsQuery
from wafl.flower.node.queries import answer
from wafl.flower.node.refusals import check_refusal
from wafl.flower.node.work import Node
from wafl.flower.server.exchange import Post
from wafl.flower.wire.run_config import OWN
from wafl.flower.wire.values import WireError

EXPERIMENT: dict[str, Any] = {
    "name": "study",
    "seeds": [5],
    "schedule": {"rounds": 1, "local_steps": 1},
    "methods": [{"method": "FedAvg"}],
    "flower": {"nodes": 3},
}
SENT = {"reply.format", "numbers.means", "numbers.shares"}


def solve(stage: Stage, grid: fakes.Grid, experiment: dict[str, Any] = EXPERIMENT) -> dict[str, Any]:
    target = str(stage.root / "aim.npz")
    post: Any = grid
    server.mixture(Post(post), {**OWN, **fakes.flat(experiment), "target": target, "output": str(stage.root)})
    return json.loads((stage.root / "study-mixture.json").read_text())


@pytest.fixture
def stage(stage: Stage) -> Stage:
    """Clients that are large enough to cut."""
    return replace(stage, clients=fakes.make_clients((53, 58, 50, 55, 60, 52)))


def write_target(folder: Path) -> np.ndarray[Any, Any]:
    aim = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    np.savez(folder / "aim.npz", x=aim)
    return aim


def test_weights_equal_those_computed_from_all_examples_in_one_place(stage: Stage) -> None:
    aim = write_target(stage.root)
    grid = stage.grid(EXPERIMENT)
    result = solve(stage, grid)
    here, exact = (
        wafl.weights.mixture(fakes.federation(stage.clients), aim, exchange=exchange, seed=5)
        for exchange in ("cuts", "examples")
    )
    assert result["weights"] == dict(zip(sorted(stage.clients), here.weights, strict=True))
    assert (result["value"], result["gap"], result["points"]) == (here.value, here.gap, 7)
    assert result["value"] == pytest.approx(exact.value, rel=1e-6)
    replies = [seen.reply for seen in grid.seen if seen.kind == "query.cuts"]
    assert {f"{record}.{name}" for reply in replies for record in reply for name in reply[record]} == SENT


def test_a_client_alone_has_the_distance_that_nearest_gives_it(stage: Stage) -> None:
    aim, stage.clients = write_target(stage.root), fakes.make_clients((51,))
    experiment = {**EXPERIMENT, "flower": {"nodes": 1}}
    result = solve(stage, stage.grid(experiment, [["c00"]]), experiment)
    here, exact = (
        wafl.weights.nearest(fakes.federation(stage.clients), aim, exchange=exchange, seed=5)
        for exchange in ("cuts", "examples")
    )
    assert (result["value"], result["gap"]) == (here.value, here.gap)
    assert result["value"] == pytest.approx(exact.value, rel=1e-6)


def test_cuts_that_no_examples_have_are_not_used(stage: Stage) -> None:
    write_target(stage.root)
    grid = stage.grid(EXPERIMENT)
    for name, wrong in (("shares", lambda x: x + 0.1), ("shares", lambda x: -x), ("means", lambda x: x * math.nan)):
        spoil = lambda reply, name=name, wrong=wrong: fakes.spoiled(reply, "numbers", name, wrong)  # noqa: E731
        grid.hosts[0].fate = lambda kind, _, spoil=spoil: spoil if kind == "query.cuts" else None
        with pytest.raises(TooFewRepliesError, match="c03"):
            solve(stage, grid)


def test_a_target_that_cannot_be_read_is_refused(stage: Stage) -> None:
    grid = stage.grid(EXPERIMENT)
    with pytest.raises(ConfigError, match=r"target='.*aim.npz' must be an .npz file with x"):
        solve(stage, grid)


def test_a_node_refuses_cuts_that_it_should_not_make(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "data", fakes.make_clients((50, 51)))
    node = Node.of({"data": str(folder), "state": str(tmp_path / "state"), **fakes.ADMITTED}, fakes.flat(EXPERIMENT))
    target, g = torch.zeros(2, 4).double(), torch.zeros(2).double()
    asked = {
        "must all differ": CutsQuery(("c00", "c00"), (0, 0), target, g, 1000, 5),
        "target": CutsQuery(("c00",), (0,), target * math.nan, g, 1000, 5),
        "g": CutsQuery(("c00",), (0,), target, g * math.nan, 1000, 5),
        "count": CutsQuery(("c00",), (0,), torch.zeros(301, 4).double(), torch.zeros(301).double(), 1000, 5),
        "shape": CutsQuery(("c00",), (0,), target[:, :3], g, 1000, 5),
    }
    for message, query in asked.items():
        with pytest.raises(WireError, match=message):
            check_refusal(answer("query.cuts", lambda: node, query.encode()))
    with pytest.raises(WireError):
        check_refusal(answer("query.cuts", lambda: node, RecordDict()))
