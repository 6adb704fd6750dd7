"""Class means, which nodes send for the shape of a ball if their experiment asks for it, and which are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import carried
from wafl.flower.node.examples import MeansQuery
from wafl.flower.node.queries import answer
from wafl.flower.node.refusals import check_refusal
from wafl.flower.node.work import Node
from wafl.flower.wire.values import NodeQuery, WireError, arrays, config_only, encode_query
from wafl.parts.messages import Query

CLIENTS = fakes.make_clients((3, 7, 8))


def make_node(folder: Path, **options: Any) -> Node:
    schedule = {"rounds": 3, "local_steps": 2, "learning_rate": 0.1}
    experiment = {"schedule": schedule, "methods": [{"method": "WAFL", **options}]}
    data = fakes.write(folder / "data", CLIENTS)
    return Node.of({"data": str(data), "state": str(folder / "state"), **fakes.ADMITTED}, fakes.flat(experiment))


def refused(node: Node, kind: str, content: RecordDict) -> str:
    with pytest.raises(WireError) as caught:
        check_refusal(carried(answer(kind, lambda: node, carried(content))))
    return str(caught.value)


def test_a_node_sends_two_means_and_the_size_of_each_class_with_two_examples(tmp_path: Path) -> None:
    query = MeansQuery(("c02", "c00", "c01"), (9, 4, 5), 3, 4)
    result = query.read(
        carried(answer("query.means", lambda: make_node(tmp_path, cost_matrix="clients"), query.encode()))
    )
    sent = {
        (client, label): (mean, count)
        for label, client, mean, count in zip(
            result.labels.tolist(), result.clients.tolist(), result.means.numpy(), result.counts.tolist(), strict=True
        )
    }
    wanted = {}
    for number, name in ((9, "c02"), (4, "c00"), (5, "c01")):
        x, y = CLIENTS[name]["x"].reshape(-1, 4), CLIENTS[name]["y"]
        for label in np.unique(y):
            rows = x[y == label].astype(np.float64)
            if len(rows) > 1:
                half = (len(rows) + 1) // 2
                wanted[number, int(label)] = ([rows[:half].mean(0), rows[half:].mean(0)], len(rows))
    assert sent.keys() == wanted.keys()
    for index, (mean, count) in wanted.items():
        assert sent[index][1] == count
        np.testing.assert_allclose(sent[index][0], mean, rtol=0, atol=1e-12)


def test_a_node_whose_experiment_does_not_ask_for_them_sends_no_means(tmp_path: Path) -> None:
    assert "so class means are not sent" in refused(
        make_node(tmp_path), "query.means", MeansQuery(("c00",), (0,), 3, 4).encode()
    )


@pytest.mark.parametrize(("labels", "places"), [([0, 0], [0, 0]), ([0, 3], [0, 1]), ([0, 1], [0, 2])])
def test_the_server_refuses_means_that_are_not_of_different_classes_of_its_clients(
    labels: list[int], places: list[int]
) -> None:
    reply = config_only("reply", labels=labels, places=places, counts=[2, 2])
    reply["numbers"] = arrays(means=torch.zeros(2, 2, 4, dtype=torch.float64))
    with pytest.raises(WireError):
        MeansQuery(("c00", "c01"), (0, 1), 3, 4).read(carried(reply))


@pytest.mark.parametrize("shape", [None, torch.zeros(4, 4), torch.full((4, 4), torch.nan), torch.eye(3)])
def test_a_node_refuses_to_train_without_a_usable_shape(shape: torch.Tensor | None, tmp_path: Path) -> None:
    scalars = {"gamma": 2.0, "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    query = Query("train", 0, 0, (0,), torch.ones(1, dtype=torch.float64), torch.zeros(15), scalars)
    content = encode_query(NodeQuery("wafl", (0,), (query,), {0: "c00"}, 3, "training"))
    if shape is not None:
        content["cost_matrix"] = arrays(matrix=shape.double())
    assert "matrix" in refused(make_node(tmp_path, cost_matrix="clients", gamma=2.0), "train", content)
