"""The nearest mixture on nodes: the weights of one place, from one mean and one histogram per client and round."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

import wafl
from tests.oracles import flower_fakes as fakes
from wafl.base.errors import ConfigError, TooFewRepliesError
from wafl.flower.app import server
from wafl.flower.node.queries import CutsQuery, answer
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
NODES = [["c03"], ["c00", "c05", "c01"], ["c02", "c04"]]
SENT = {"reply.format", "numbers.means", "numbers.shares"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> fakes.Clock:
    return fakes.virtual(monkeypatch)


@pytest.fixture(scope="module")
def clients() -> dict[str, fakes.Client]:
    return fakes.make_clients((3, 8, 6, 5, 10, 2))


def solve(grid: fakes.Grid, folder: Path, target: Path, experiment: dict[str, Any] = EXPERIMENT) -> dict[str, Any]:
    values = {**OWN, **fakes.flat(experiment), "target": str(target), "output": str(folder)}
    post: Any = grid
    server.mixture(Post(post), values)
    return json.loads((folder / "study-mixture.json").read_text())


def write_target(folder: Path) -> np.ndarray[Any, Any]:
    aim = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    np.savez(folder / "aim.npz", x=aim)
    return aim


def test_weights_equal_those_computed_from_all_examples_in_one_place(
    clients: dict[str, fakes.Client], clock: fakes.Clock, tmp_path: Path
) -> None:
    aim = write_target(tmp_path)
    grid = fakes.make_grid(clock, tmp_path, clients, NODES, EXPERIMENT)
    found = solve(grid, tmp_path, tmp_path / "aim.npz")
    here, exact = (
        wafl.weights.mixture(fakes.federation(clients), aim, exchange=exchange, seed=5)
        for exchange in ("cuts", "examples")
    )
    assert found["weights"] == dict(zip(sorted(clients), here.weights, strict=True))
    assert (found["value"], found["gap"], found["points"]) == (here.value, here.gap, 7)
    assert found["value"] == pytest.approx(exact.value, rel=1e-6)
    replies = [seen.reply for seen in grid.seen if seen.kind == "query.cuts"]
    assert {f"{record}.{name}" for reply in replies for record in reply for name in reply[record]} == SENT


def test_a_client_alone_has_the_distance_that_nearest_gives_it(clock: fakes.Clock, tmp_path: Path) -> None:
    aim, one = write_target(tmp_path), fakes.make_clients((8,))
    experiment = {**EXPERIMENT, "flower": {"nodes": 1}}
    found = solve(
        fakes.make_grid(clock, tmp_path, one, [["c00"]], experiment), tmp_path, tmp_path / "aim.npz", experiment
    )
    here, exact = (
        wafl.weights.nearest(fakes.federation(one), aim, exchange=exchange, seed=5) for exchange in ("cuts", "examples")
    )
    assert (found["value"], found["gap"]) == (here.value, here.gap)
    assert found["value"] == pytest.approx(exact.value, rel=1e-6)


def test_cuts_that_no_examples_have_are_not_used(
    clients: dict[str, fakes.Client], clock: fakes.Clock, tmp_path: Path
) -> None:
    write_target(tmp_path)
    grid = fakes.make_grid(clock, tmp_path, clients, NODES, EXPERIMENT)
    for name, wrong in (("shares", lambda x: x + 0.1), ("shares", lambda x: -x), ("means", lambda x: x * math.nan)):
        spoil = lambda reply, name=name, wrong=wrong: fakes.spoiled(reply, "numbers", name, wrong)  # noqa: E731
        grid.hosts[0].fate = lambda kind, _, spoil=spoil: spoil if kind == "query.cuts" else None
        with pytest.raises(TooFewRepliesError, match="c03"):
            solve(grid, tmp_path, tmp_path / "aim.npz")


def test_a_target_that_cannot_be_read_is_refused(
    clients: dict[str, fakes.Client], clock: fakes.Clock, tmp_path: Path
) -> None:
    grid = fakes.make_grid(clock, tmp_path, clients, NODES, EXPERIMENT)
    with pytest.raises(ConfigError, match=r"target='.*no.npz' must be an .npz file with x"):
        solve(grid, tmp_path, tmp_path / "no.npz")


def test_a_node_refuses_cuts_that_it_should_not_make(tmp_path: Path) -> None:
    folder = fakes.write(tmp_path / "data", fakes.make_clients((3, 4)))
    node = Node.of({"data": str(folder), "state": str(tmp_path / "state")}, fakes.flat(EXPERIMENT))
    target, g = torch.zeros(2, 4).double(), torch.zeros(2).double()
    asked = {
        "must all differ": CutsQuery(("c00", "c00"), (0, 0), target, g, 9, 0),
        "target": CutsQuery(("c00",), (0,), target * math.nan, g, 9, 0),
        "g": CutsQuery(("c00",), (0,), target, g * math.nan, 9, 0),
        "count": CutsQuery(("c00",), (0,), torch.zeros(301, 4).double(), torch.zeros(301).double(), 9, 0),
        "shape": CutsQuery(("c00",), (0,), target[:, :3], g, 9, 0),
    }
    for message, query in asked.items():
        with pytest.raises(WireError, match=message):
            check_refusal(answer("query.cuts", lambda: node, query.encode()))
    with pytest.raises(WireError):
        check_refusal(answer("query.cuts", lambda: node, RecordDict()))
