"""Statements about the next client on nodes: the numbers of the embedded calls, and one answer per client."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import wafl
from tests.flower.conftest import Stage
from tests.flower.runs import BASE, NEXT_CLIENT, keys, only
from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import GONE, Grid, spoiled
from tests.promises.files import write_keys
from wafl.base.errors import ConfigError, PreconditionError
from wafl.flower.app import server
from wafl.flower.node import queries
from wafl.flower.node.next_client import NextClientQuery
from wafl.flower.server.exchange import Post
from wafl.flower.wire.run_config import OWN
from wafl.promises.promise import digest_of
from wafl.receipts.questions import Questions
from wafl.receipts.reply import Reply, reply_of
from wafl.results.saved import load_run

COUNT = 12
QUESTIONS: dict[str, Any] = {"radii": [0.0, 0.3], "minimum": 8, "coverage": 0.8}
NAMES = [f"c{index:02d}" for index in range(COUNT)]
LAYOUT = [[name] for name in NAMES]


def experiment(**questions: Any) -> dict[str, Any]:
    data = {**BASE["data"], "unseen": 0.75, "unseen_seed": 1}
    flower = {**BASE["flower"], "nodes": COUNT}
    changes = {"schedule": {**BASE["schedule"], "cohort": 3}, "questions": {**QUESTIONS, **questions}}
    return only({"method": "FedAvg"}, data=data, flower=flower, **changes)


@pytest.fixture
def crowd(stage: Stage) -> Stage:
    stage.clients = fakes.make_clients([8 + index for index in range(COUNT)])
    return stage


def trained(stage: Stage, **questions: Any) -> Grid:
    grid = stage.grid(experiment(**questions), LAYOUT)
    stage.train(experiment(**questions), grid)
    grid.seen.clear()
    return grid


def ask(stage: Stage, grid: Grid, task: str = "next-client", folder: Path | None = None, **changes: Any) -> Any:
    """Run a task on the grid, and return what it wrote."""
    folder, invited = folder or stage.study / "fedavg", changes.pop("invited", "[]")
    values = {**OWN, **fakes.flat(experiment(**changes)), "task": task, "folder": str(folder), "invited": invited}
    server.next_client(Post(grid), values, "sets" if task == "sets" else "next")  # type: ignore[arg-type]
    written = (folder if folder.is_dir() else folder.parent) / "next-client.json"
    return json.loads(written.read_text())


def unseen(stage: Stage) -> wafl.Federation:
    return fakes.federation(stage.clients).hold_out(0.75, seed=1)[1]


@pytest.mark.parametrize("about", ["client", "example"])
def test_statements_are_those_of_the_embedded_calls(about: Any, crowd: Stage) -> None:
    more = {"about": about, "gammas": [0.5]} if about == "example" else {"about": about}
    grid = trained(crowd, **more)
    content = ask(crowd, grid, **more)
    seen, here = fakes.federation(crowd.clients).hold_out(0.75, seed=1)
    run, questions = load_run(crowd.study / "fedavg"), Questions.of({**QUESTIONS, **more})
    assert content["model"] == digest_of(run.module)
    assert Questions.of(content["questions"]).digest == questions.digest
    assert set(content["replies"]) == set(here.names)
    for index, name in enumerate(here.names):
        expected = reply_of(questions, run.module, here.of_clients([index]), here.num_clients)
        assert Reply.of(content["replies"][name], questions) == expected
    rows = {(each["kind"], each["radius"], each["own_sampling"]): each for each in content["statements"]}
    bounds = wafl.next_client(run, seen, here, metric="error")
    assert rows["next", 0.0, False]["value"] == pytest.approx(bounds.next(own_sampling=False), rel=1e-12)
    assert rows["next", 0.0, False]["confidence"] == 0.9
    if about == "client":
        for radius in questions.radii:
            options = {"coverage": 0.8, "radius": radius, "grid": questions.thresholds}
            sets = wafl.prediction_sets(run, here, **options)
            assert rows["sets", radius, False]["value"] == sets.threshold, "to the bit"
    kinds = {each.kind for each in grid.seen if each.kind != "query.hello"}
    assert kinds == {"query.next_client"}
    for each in grid.seen:
        if each.kind == "query.next_client":
            assert keys(each.reply) == NEXT_CLIENT, "docs/flower.md lists these"
    before = (crowd.study / "fedavg" / "next-client.json").read_bytes()
    ask(crowd, grid, "sets", **more)
    assert (crowd.study / "fedavg" / "next-client.json").read_bytes() == before, "the same answers again"


def test_a_client_that_answers_nan_or_nothing_counts_as_infinity_and_a_small_one_not_at_all(crowd: Stage) -> None:
    grid, names = trained(crowd, minimum=10), unseen(crowd).names
    small, lying, gone = "c00", names[2], names[5]
    assert len({small, lying, gone}) == 3

    def fate(kind: str, _: int | None, name: str) -> Any:
        if kind != "query.next_client":
            return None
        return GONE if name == gone else lambda reply: spoiled(reply, "numbers", "values", lambda x: x * math.nan)

    for host, name in zip(grid.hosts, NAMES, strict=True):
        if name in (lying, gone):
            host.fate = lambda kind, number, name=name: fate(kind, number, name)
    content = ask(crowd, grid, minimum=10)
    tiny = [name for name in names if len(crowd.clients[name]["y"]) + len(crowd.clients[name]["y_test"]) < 10]
    assert (content["small"], content["missing"]) == (tiny, [name for name in names if name in (lying, gone)])
    count, finite = 9 - len(tiny), sorted(each["values"][0] for each in content["replies"].values())
    assert len(finite) == count - 2
    (row,) = [each for each in content["statements"] if (each["kind"], each["radius"]) == ("next", 0.0)][:1]
    assert row["value"] == "inf", "the highest confidence takes all clients"
    again = ask(crowd, grid, minimum=10, confidence=0.5)
    (row,) = [each for each in again["statements"] if (each["kind"], each["radius"]) == ("next", 0.0)][:1]
    values = sorted([*(each["values"][0] for each in again["replies"].values()), math.inf, math.inf])
    assert row["value"] == values[math.ceil(0.5 * (count + 1)) - 1]
    assert "with at least 10 examples" in row["sentence"]


def test_a_receipt_has_the_numbers_of_a_node(crowd: Stage, tmp_path: Path) -> None:
    content = ask(crowd, trained(crowd))
    here, run = unseen(crowd), load_run(crowd.study / "fedavg")
    (tmp_path / "keys").mkdir()
    private = {}
    for name in here.names:
        private[name], public = write_keys(tmp_path, name)
        public.rename(tmp_path / "keys" / f"{name}.pub")
    key, _ = write_keys(tmp_path, "owner")
    request = wafl.receipts.request(run, Questions.of(QUESTIONS), invite=tmp_path / "keys", key=key)
    for index, name in enumerate(here.names):
        own = here.of_clients([index])
        receipt = wafl.receipts.receipt(request, run, own, key=private[name], state=tmp_path / "state")
        receipt.save(tmp_path / f"{name}.json")
    result = wafl.receipts.merge(request, [tmp_path / f"{name}.json" for name in here.names])
    saved = json.loads(result.merged.content)
    assert saved["replies"] == content["replies"]
    for row, other in zip(saved["statements"], content["statements"], strict=True):
        assert row == {name: value for name, value in other.items() if name != "sentence"}


def query_of(module: torch.nn.Module, name: str, questions: Questions, invited: int = 9) -> Any:
    return NextClientQuery((name,), module.state_dict(), 3, invited, questions)


def test_a_node_answers_about_one_model_and_again_only_after_enough_examples_changed(
    crowd: Stage, tmp_path: Path
) -> None:
    clients = fakes.make_clients([60])
    questions, module = Questions.of(QUESTIONS), wafl.models.mlr(fakes.federation(clients))

    def answer(rows: dict[str, np.ndarray], model: torch.nn.Module, **config: str) -> Reply | str:
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        np.savez(folder / "c00.npz", **rows)
        settings = {"data": str(folder), "state": str(tmp_path / "state"), **fakes.ADMITTED, **config}
        node = fakes.Node.of(settings, fakes.flat(experiment()))
        query = query_of(model, "c00", questions)
        (reply,) = query.read(queries.answer("query.next_client", lambda: node, query.encode()))
        return reply

    first = answer(clients["c00"], module)
    assert isinstance(first, Reply)
    assert answer(clients["c00"], module) == first
    other = wafl.models.mlr(fakes.federation(clients))
    torch.nn.init.normal_(other.weight if isinstance(other, torch.nn.Linear) else next(other.parameters()))
    refusal = answer(clients["c00"], other)
    assert isinstance(refusal, str)
    assert digest_of(module) in refusal
    assert "--allow-model" in refusal
    fewer = {**clients["c00"], "x": clients["c00"]["x"][:41], "y": clients["c00"]["y"][:41]}
    refusal = answer(fewer, module)
    assert isinstance(refusal, str)
    assert "fewer than 20 of its examples have changed" in refusal
    changed = {**clients["c00"], "x": clients["c00"]["x"].copy()}
    changed["x"][:20] += 1.0
    assert isinstance(answer(changed, module), Reply)
    allowed = ",".join((digest_of(module), digest_of(other)))
    assert isinstance(answer(changed, other, **{"allow-model": allowed}), Reply)
    refusal = answer(changed, other, **{"allow-model": digest_of(module)})
    assert isinstance(refusal, str)
    assert "is not among those" in refusal
    with pytest.raises(ConfigError, match="must be the digest of a model"):
        answer(changed, module, **{"allow-model": "beef"})


def test_weights_alone_are_enough_and_what_cannot_be_said_is_refused_before_anyone_is_asked(crowd: Stage) -> None:
    settings = experiment()
    settings["data"] = BASE["data"]
    grid = crowd.grid(settings, LAYOUT)
    everyone = fakes.federation(crowd.clients)
    file = crowd.root / "weights.safetensors"
    save_file(wafl.models.mlr(everyone).state_dict(), file)
    values = {**OWN, **fakes.flat(settings), "folder": str(file)}
    server.next_client(Post(grid), values, "next")  # type: ignore[arg-type]
    content = json.loads((crowd.root / "next-client.json").read_text())
    assert set(content["replies"]) == set(everyone.names)
    grid.seen.clear()
    for changes, error, message in (
        ({"invited": '["c01"]', "questions.confidence": 0.9}, PreconditionError, "supports at most 50% confidence"),
        ({"invited": "7"}, ConfigError, "must be a list of clients"),
        ({"folder": str(crowd.root / "none.safetensors")}, ConfigError, "does not fit the app's model"),
    ):
        with pytest.raises(error, match=message):
            server.next_client(Post(grid), {**values, **changes}, "next")  # type: ignore[arg-type]
    assert all(each.kind == "query.hello" for each in grid.seen)
    plain = {key: value for key, value in values.items() if not key.startswith("questions")}
    with pytest.raises(ConfigError, match=r"needs the section \[questions\]"):
        server.next_client(Post(grid), plain, "next")  # type: ignore[arg-type]


def test_clients_that_trained_are_never_asked(crowd: Stage) -> None:
    grid = trained(crowd)
    seen = fakes.federation(crowd.clients).hold_out(0.75, seed=1)[0].names
    with pytest.raises(ConfigError, match="trained, so their replies say nothing"):
        ask(crowd, grid, invited=json.dumps([seen[0], "c01"]))
    absent = ask(crowd, grid, invited=json.dumps([*unseen(crowd).names, "far-away"]))
    assert absent["missing"] == ["far-away"]
