"""A radius that nodes choose by leaving clients out: the one that the embedded engine chooses, to the last bit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.flower.conftest import SIZES, Stage
from tests.flower.runs import SPREAD, assert_near, assert_same, keys, only, results
from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import HANG, carried
from wafl.base.errors import ConfigError, TooFewRepliesError
from wafl.flower.node import queries
from wafl.flower.node.examples import SpreadQuery
from wafl.flower.node.refusals import check_refusal
from wafl.flower.node.work import Node
from wafl.flower.wire.values import WireError, arrays, config_only

AUTO = {"method": "WAFL", "radius": "auto"}


CONTROL = {**AUTO, "name": "control", "local": {"kind": "control_variates"}}
SNAPSHOT = {**AUTO, "name": "snapshot", "client_weights": "snapshot"}
KNOWN = {"method": "WAFL", "radius": 0.3}


@pytest.mark.filterwarnings("ignore::wafl.base.errors.ConcavityWarning")
@pytest.mark.parametrize(
    ("methods", "seeds", "targets"),
    [
        ([AUTO], [2], 2),
        pytest.param([CONTROL, SNAPSHOT, KNOWN], [2, 5], 0, marks=pytest.mark.slow),
    ],
    ids=["losses", "accuracies"],
)
def test_nodes_choose_what_the_embedded_engine_chooses(
    methods: list[dict[str, Any]], seeds: list[int], targets: int, stage: Stage
) -> None:
    """Every seed chooses for itself, and clients of one node are in both halves."""
    stage.clients = fakes.make_clients(SIZES, targets=targets)
    experiment = only(
        *({**method, "steps": 3} for method in methods),
        seeds=seeds,
        schedule={"rounds": 12, "local_steps": 1, "batch_size": 2, "learning_rate": 0.02 if targets else 0.3},
        model={"loss": "squared_error" if targets else "cross_entropy"},
        tolerance={"clip": math.inf},  # among three clients, one is easily 2.5 times as long as the median
    )
    here = stage.embedded(experiment)
    grid = stage.train(experiment)
    assert_same(stage.study, here)
    chosen = {name: row.get("chosen") for name, row in results(here)["methods"].items()}
    assert_near({name: row.get("chosen") for name, row in results(stage.study)["methods"].items()}, chosen)
    assert [name for name, each in chosen.items() if each] == [row.get("name", "WAFL") for row in methods[:2]]
    if targets:
        tried = [row["mean"] for row in chosen["WAFL"]["2"]["tried"]]
        assert len(set(tried)) == len(tried), "radii matter"
    asked = [seen for seen in grid.seen if seen.kind == "query.spread"]
    assert {key for seen in asked for key in keys(seen.reply)} == SPREAD


def test_everyone_must_say_how_its_examples_spread(stage: Stage) -> None:
    experiment = only(AUTO, tolerance={"attempts": 1})
    grid = stage.grid(experiment)
    grid.hosts[0].fate = lambda kind, _: HANG if kind == "query.spread" else None
    with pytest.raises(TooFewRepliesError, match=r"query.spread: no usable reply from 1 clients"):
        stage.train(experiment, grid)


def test_too_few_clients_and_weights_of_clients_are_refused_before_a_client_works(stage: Stage) -> None:
    for sizes, change, why in (
        ((3, 4, 5), {}, "needs at least 4 of them, not 3: give a number"),
        ((3, 4, 5, 6), {"client_weights": [1.0, 2.0, 3.0, 4.0]}, "or give the radius as a number"),
    ):
        experiment = only({**AUTO, **change}, flower={"nodes": 1, "wait": 1.0})
        here = replace(stage, root=stage.root / str(len(sizes)), clients=fakes.make_clients(sizes))
        grid = here.grid(experiment, [list(here.clients)])
        with pytest.raises((ValueError, ConfigError), match=why):
            here.train(experiment, grid)
        assert {seen.kind for seen in grid.seen} == {"query.hello"}


CLIENTS = fakes.make_clients((3, 4))


def make_node(folder: Path, **options: Any) -> Node:
    experiment = {"schedule": {"rounds": 3, "local_steps": 2}, "methods": [{"method": "WAFL", **options}]}
    data = fakes.write(folder / "data", CLIENTS)
    return Node.of({"data": str(data), "state": str(folder / "state"), **fakes.ADMITTED}, fakes.flat(experiment))


def test_a_node_says_how_far_examples_lie_from_the_mean_of_their_client(tmp_path: Path) -> None:
    query = SpreadQuery(("c01", "c00"))
    result = query.read(
        carried(queries.answer("query.spread", lambda: make_node(tmp_path, radius="auto"), query.encode()))
    )
    for (squares, size), name in zip(result, query.names, strict=True):
        x = CLIENTS[name]["x"].reshape(-1, 4).astype(np.float64)
        assert size == len(x)
        assert squares == pytest.approx(float(((x - x.mean(0)) ** 2).sum()))


def test_a_node_whose_experiment_chooses_no_radius_keeps_both_to_itself(tmp_path: Path) -> None:
    node = make_node(tmp_path, radius=0.3)
    _, start = node.task(3)
    for kind, content, why in (
        ("query.spread", SpreadQuery(("c00",)).encode(), "so the spread of examples is not sent"),
        (
            "evaluate.test",
            queries.TestQuery(("c00",), False, start, 3, 0, "train").encode(),
            "only test examples are tested",
        ),
    ):
        with pytest.raises(WireError, match=why):
            check_refusal(carried(queries.answer(kind, lambda: node, carried(content))))


@pytest.mark.parametrize(("squares", "sizes"), [([-1.0], [3]), ([math.nan], [3]), ([1.0], [-3]), ([1.0, 2.0], [3])])
def test_the_server_refuses_a_spread_that_cannot_be(squares: list[float], sizes: list[int]) -> None:
    reply = config_only("reply", sizes=sizes)
    reply["numbers"] = arrays(squares=torch.tensor(squares, dtype=torch.float64))
    with pytest.raises(WireError):
        SpreadQuery(("c00",)).read(reply)
