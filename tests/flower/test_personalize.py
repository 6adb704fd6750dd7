"""Personalization on nodes: the numbers of the embedded call, on the node's disk and nowhere else."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors.torch import load_file

from tests.flower.conftest import Stage
from tests.flower.runs import BASE, keys, only
from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import Grid
from wafl.base.errors import ConfigError, TooFewRepliesError
from wafl.flower.app import server
from wafl.flower.node.personalize import PersonalizeQuery
from wafl.flower.server.exchange import Post
from wafl.flower.wire.run_config import OWN
from wafl.flower.wire.values import WireError, config_only
from wafl.results.saved import load_run

OPTIONS: dict[str, Any] = {"steps": 3, "learning_rate": 0.5, "layers": "all"}
NAMES = ("c00", "c01", "c02", "c03")


@pytest.fixture(autouse=True)
def four(stage: Stage) -> None:
    stage.clients = fakes.make_clients([8, 9, 10, 11])


def experiment() -> dict[str, Any]:
    return only({"method": "FedAvg"}, flower={**BASE["flower"], "nodes": 2}, personalize=OPTIONS)


def trained(stage: Stage, *, first: int = 2) -> Grid:
    """Train a model on two nodes, with this number of clients on the first one."""
    grid = stage.grid(experiment(), [NAMES[:first], NAMES[first:]])
    stage.train(experiment(), grid)
    grid.seen.clear()
    return grid


def ask(stage: Stage, grid: Grid, **values: Any) -> None:
    content = {
        **OWN,
        **fakes.flat(experiment()),
        "task": "personalize",
        "folder": str(stage.study / "fedavg"),
        **values,
    }
    server.personalize(Post(grid), content)  # type: ignore[arg-type]


def results(folder: Path) -> dict[str, Path]:
    """Return the folder of each client's result, by the client's name."""
    return {json.loads(file.read_text())["client"]: file.parent for file in folder.rglob("personal/*/result.json")}


def test_nodes_fine_tune_as_the_embedded_call_does_and_send_nothing(stage: Stage, tmp_path: Path) -> None:
    grid = trained(stage)
    ask(stage, grid)
    here, run = fakes.federation(stage.clients), load_run(stage.study / "fedavg")
    found = results(tmp_path)
    assert found.keys() == {*NAMES}
    for index, name in enumerate(here.names):
        folder, expected = found[name], run.personalize(here.of_clients([index]), **OPTIONS)
        content = json.loads((folder / "result.json").read_text())
        assert {key: content[key] for key in expected.to_json()} == json.loads(json.dumps(expected.to_json()))
        for key, value in load_file(folder / "model.safetensors").items():
            assert torch.equal(value, expected.model.state_dict()[key])
        assert folder.name == sha256(name.encode()).hexdigest()[:16]
        assert all(stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 for file in (folder, *folder.iterdir()))
    asked = [each for each in grid.seen if each.kind == "query.personalize"]
    assert len(asked) == 2
    assert all(keys(each.reply) == {"reply.format"} for each in asked), "docs/flower.md reports it"


def test_only_the_invited_clients_are_asked(stage: Stage, tmp_path: Path) -> None:
    ask(stage, trained(stage), invited='["c02"]')
    assert results(tmp_path).keys() == {"c02"}


def test_the_server_does_not_learn_that_a_client_failed(stage: Stage, tmp_path: Path) -> None:
    for name in ("x_test", "y_test"):
        del stage.clients["c00"][name]
    grid = trained(stage, first=1)
    ask(stage, grid)
    assert results(tmp_path).keys() == {"c01", "c02", "c03"}
    assert all(keys(each.reply) == {"reply.format"} for each in grid.seen if each.kind == "query.personalize")


def test_an_app_without_the_section_is_refused_before_any_node_is_asked(stage: Stage) -> None:
    grid = trained(stage)
    values = fakes.flat(only({"method": "FedAvg"}))
    with pytest.raises(ConfigError, match=r"task='personalize' needs the section \[personalize\]"):
        server.personalize(Post(grid), {**OWN, **values, "task": "personalize", "folder": "x"})  # type: ignore[arg-type]
    assert grid.seen == []


@pytest.mark.parametrize("extra", [{"reply": {"done": True}}, {"numbers": {}}])
def test_a_reply_that_holds_anything_is_refused(extra: dict[str, dict[str, Any]]) -> None:
    query, plain = PersonalizeQuery(NAMES, {}, 3), config_only("reply")
    query.read(plain)
    told = {**{name: dict(record) for name, record in plain.items()}, **extra}
    told["reply"] = {**dict(plain["reply"]), **extra.get("reply", {})}
    with pytest.raises(WireError, match="must contain only its format"):
        query.read(RecordDict({name: ConfigRecord(record) for name, record in told.items()}))


def test_more_steps_than_the_operator_allows_are_refused(stage: Stage, tmp_path: Path) -> None:
    grid = trained(stage)
    for host in grid.hosts:
        host.node.limits = replace(host.node.limits, max_steps=2)
    with pytest.raises(TooFewRepliesError, match="a round of 3 steps is more than 2"):
        ask(stage, grid)
    assert results(tmp_path) == {}
