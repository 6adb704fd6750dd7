"""Clients that never train, on a grid of nodes: the server draws them, and their nodes test models on their data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import wafl
from tests.flower.conftest import Stage
from tests.flower.runs import BASE, assert_same, during, everyone, only, results
from tests.oracles import flower_fakes as fakes
from wafl.base.errors import ConfigError
from wafl.base.files import unsealed
from wafl.config.experiment import Data
from wafl.flower.node import queries
from wafl.flower.node.site import open_site


def test_clients_that_never_train_are_tested_and_give_the_embedded_numbers(stage: Stage) -> None:
    """Parameters to the bit, and the three numbers; no unseen client is asked for anything but a test."""
    methods = {"method": "FedAvg"}, {"method": "WAFL", "gamma": 2.0}
    changes = {"attack": {"steps": 2}, "evaluation": {"attacked": [0.5], "every": 1}}
    experiment = only(*methods, data={**BASE["data"], "unseen": 0.34, "unseen_seed": 1}, **changes)
    here = stage.embedded(experiment)
    grid = stage.train(experiment)
    assert_same(stage.study, here)
    assert results(here)["methods"]["FedAvg"]["generalization"]["unseen"]["mean"] >= 0
    seen, unseen = fakes.federation(stage.clients).hold_out(0.34, seed=1)
    assert len(unseen.names) == 2
    roster = unsealed((stage.study / "roster.json").read_bytes())
    assert (roster["names"], roster["unseen"]) == (list(seen.names), list(unseen.names))
    asked: dict[str, set[str]] = {}
    for each in grid.seen:
        query: Any = each.query["query"]
        asked.setdefault(query.get("part", each.kind), set()).update(query.get("names", ()))
    del asked["query.hello"]
    assert asked == {
        "train": set(seen.names),  # as a message, and as a part of the examples
        "evaluate.test": set(seen.names),
        "all": set(unseen.names),
    }


@pytest.mark.slow
def test_whoever_joins_late_trains(stage: Stage) -> None:
    experiment = everyone({"method": "FedAvg"}, data={**BASE["data"], "unseen": 0.3}, flower={"nodes": 2, "wait": 5.0})
    grid = stage.grid(experiment)
    grid.hosts[2].here = False
    grid.before_push = during(2, lambda: setattr(grid.hosts[2], "here", True))
    stage.train(experiment, grid)
    _, unseen = fakes.federation({name: stage.clients[name] for name in ("c00", "c01", "c03", "c05")}).hold_out(0.3)
    roster = unsealed((stage.study / "roster.json").read_bytes())
    assert roster["unseen"] == list(unseen.names)
    assert roster["names"][-2:] == ["c02", "c04"]


def test_one_client_alone_cannot_be_held_out_on_nodes(stage: Stage) -> None:
    experiment = only({"method": "FedAvg"}, data={**BASE["data"], "unseen": 0.3}, flower={**BASE["flower"], "nodes": 1})
    grid = stage.grid(experiment, [["c01"]])
    with pytest.raises(ConfigError, match=r"data\.unseen = 0\.3: there is only one client"):
        stage.train(experiment, grid)
    assert not stage.study.exists()


def test_a_node_tells_of_its_training_examples_only_if_the_experiment_has_unseen_clients(stage: Stage) -> None:
    node = stage.grid(only({"method": "FedAvg"}), [["c01"]]).hosts[0].node
    params = node.task(3)[1]

    def asked(part: Any) -> str:
        query = queries.TestQuery(("c01",), False, params, 3, 0, part)
        reply: Any = queries.answer("evaluate.test", lambda: node, query.encode())
        return str(reply["refused"]["why"]) if "refused" in reply else ""

    assert asked("test") == ""
    assert "no data.unseen" in asked("train")
    assert "must be one of test, train, all" in asked("every")


def test_statistics_of_simulated_nodes_never_see_the_clients_that_never_train() -> None:
    data = Data(dataset="digits", num_clients=6, iid=True, preprocess="zscore", unseen=0.3, unseen_seed=1)
    held = open_site({"partition-id": 1, "num-partitions": 2}, data).federation
    everyone = wafl.load_dataset("digits").partition(6, iid=True, preprocess="zscore")
    for part in everyone.hold_out(0.3, seed=1):
        for position, name in enumerate(part.names):
            assert torch.equal(held.train.of(everyone.names.index(name))[0], part.train.of(position)[0])
    assert not torch.equal(held.train.of(0)[0], everyone.train.of(0)[0])
