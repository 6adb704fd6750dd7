"""Class means, which nodes send for the shape of a ball if their experiment asks for it, and which are checked."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict

from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import carried
from wafl.base.fingerprint import tensors_digest
from wafl.flower.node.examples import MeansQuery
from wafl.flower.node.queries import answer
from wafl.flower.node.refusals import check_refusal
from wafl.flower.node.work import Node
from wafl.flower.wire.values import NodeQuery, WireError, arrays, config_only, encode_query
from wafl.objectives import Wasserstein
from wafl.parts.messages import Query

CLIENTS = fakes.make_clients((3, 7, 8))


def make_node(
    folder: Path, *, model: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **options: Any
) -> Node:
    schedule = {"rounds": 3, "local_steps": 2, "learning_rate": 0.1}
    experiment = {"schedule": schedule, "model": model or {}, "methods": [{"method": "WAFL", **options}]}
    settings = {"data": str(fakes.write(folder / "data", CLIENTS)), "state": str(folder / "state"), **fakes.ADMITTED}
    return Node.of({**settings, **(config or {})}, fakes.flat(experiment))


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


def at_layer(folder: Path, **config: Any) -> Node:
    options = {"space": "1", "cost_matrix": "clients"}
    return make_node(folder, config=config, model={"kind": "tests.oracles.flower_fakes:hidden"}, **options)


def start_of(node: Node) -> str:
    return tensors_digest([node.task(3)[1]])


def test_at_a_layer_a_node_sends_the_means_of_outputs_of_the_models_start(tmp_path: Path) -> None:
    node = at_layer(tmp_path)
    query = MeansQuery(("c02", "c01"), (9, 4), 3, 6, "1", start_of(node))
    result = query.read(carried(answer("query.means", lambda: node, query.encode())))
    model = fakes.hidden(SimpleNamespace(num_outputs=3))
    assert isinstance(model, torch.nn.Sequential)
    places = zip(result.labels.tolist(), result.clients.tolist(), strict=True)
    for (label, client), mean in zip(places, result.means, strict=True):
        one = CLIENTS["c02" if client == 9 else "c01"]
        with torch.no_grad():
            rows = model[:2](torch.from_numpy(one["x"][one["y"] == label])).double()
        half = (len(rows) + 1) // 2
        torch.testing.assert_close(mean, torch.stack([rows[:half].mean(0), rows[half:].mean(0)]), rtol=0, atol=1e-6)
    assert len(result.labels) == 6


def test_at_a_layer_a_node_answers_only_about_that_layer_of_its_own_start(tmp_path: Path) -> None:
    node, about = at_layer(tmp_path), (("c02",), (0,), 3, 6)
    start = start_of(node)
    ask = partial(refused, node, "query.means")
    no_method = "no method of the experiment has cost_matrix='clients'"
    assert f"{no_method}, so" in ask(MeansQuery(*about).encode())
    assert f"{no_method}, space='0', so" in ask(MeansQuery(*about, "0", start).encode())
    inputs = make_node(tmp_path / "inputs", cost_matrix="clients")
    assert f"{no_method}, space='1', so" in refused(inputs, "query.means", MeansQuery(*about, "1", start).encode())
    moved = tensors_digest([node.task(3)[1] + 1.0])
    assert "starts with other numbers here than at the server" in ask(MeansQuery(*about, "1", moved).encode())
    assert "3 classes or targets, the model 4 outputs" in ask(MeansQuery(("c02",), (0,), 4, 6, "1", start).encode())


def test_at_a_layer_a_node_sends_no_means_of_few_examples(tmp_path: Path) -> None:
    """c00 has 3 examples, c01 has 3, 2 and 2 of the classes, c02 has 3, 3 and 2."""
    node = at_layer(tmp_path, **{"min-examples": 3})
    query = MeansQuery(("c01", "c02"), (0, 1), 3, 6, "1", start_of(node))
    assert query.read(carried(answer("query.means", lambda: node, query.encode()))).counts.tolist() == [3, 3, 3]


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


@pytest.mark.parametrize("shape", [None, torch.eye(4), torch.full((6, 6), torch.nan)])
def test_at_a_layer_a_node_refuses_to_train_without_a_shape_for_its_outputs(
    shape: torch.Tensor | None, tmp_path: Path
) -> None:
    node = at_layer(tmp_path)
    scalars = {**Wasserstein().scalars(), "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    query = Query("train", 0, 0, (0,), torch.ones(1, dtype=torch.float64), node.task(3)[1], scalars)
    content = encode_query(NodeQuery("wafl", (0,), (query,), {0: "c00"}, 3, "training"))
    if shape is not None:
        content["cost_matrix"] = arrays(matrix=shape.double())
    assert "matrix" in refused(node, "train", content)


@pytest.mark.parametrize("shape", [None, torch.zeros(4, 4), torch.full((4, 4), torch.nan), torch.eye(3)])
def test_a_node_refuses_to_train_without_a_usable_shape(shape: torch.Tensor | None, tmp_path: Path) -> None:
    scalars = {"gamma": 2.0, "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    query = Query("train", 0, 0, (0,), torch.ones(1, dtype=torch.float64), torch.zeros(15), scalars)
    content = encode_query(NodeQuery("wafl", (0,), (query,), {0: "c00"}, 3, "training"))
    if shape is not None:
        content["cost_matrix"] = arrays(matrix=shape.double())
    assert "matrix" in refused(make_node(tmp_path, cost_matrix="clients", gamma=2.0), "train", content)
