"""A server that wants a record of a client, against a node's own request handler: docs/security.md has the table.

Each attack is first seen to work where nothing forbids it, so that no refusal is for another reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import Tensor

from tests.flower.conftest import Logged, Stage
from tests.oracles import flower_fakes as fakes
from tests.oracles.curious import SCALARS, Curious
from wafl.base.errors import ConfigError
from wafl.flower.node import examples, queries
from wafl.flower.node.examples import CutsQuery, MeansQuery, SpreadQuery
from wafl.flower.node.hello import Hello
from wafl.flower.node.next_client import NextClientQuery
from wafl.flower.node.personalize import PersonalizeQuery
from wafl.flower.node.queries import HANDLERS, GraphQuery, SurveyQuery, answer
from wafl.flower.node.refusals import check_refusal
from wafl.flower.node.work import Node
from wafl.flower.wire.overrides import AppConfig
from wafl.flower.wire.values import NodeQuery, WireError, config_only, encode_query
from wafl.parts.messages import Query
from wafl.receipts.questions import Questions

FEATURES, SIZE, BATCH = 8, 40, 32
SCHEDULE = {"rounds": 2, "local_steps": 1, "batch_size": BATCH, "learning_rate": 0.5}
QUESTIONS = {"radii": [0.0], "minimum": 20}
CLIENTS = fakes.make_clients((SIZE, 5, 60), shape=(FEATURES,))


def app(*methods: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The run config of an app; it trains FedAvg and declares no further task unless told otherwise."""
    schedule = {**SCHEDULE, **sections.pop("schedule", {})}
    flower = {"tasks": sections.pop("tasks", ["train"])}
    return fakes.flat(
        {"methods": [*methods] or [{"method": "FedAvg"}], "schedule": schedule, "flower": flower, **sections}
    )


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """A function that starts a node with its own data, for an app."""
    data = fakes.write(tmp_path / "data", CLIENTS)

    def make(run_config: dict[str, Any] | None = None, **config: Any) -> Node:
        return Node.of({"data": str(data), "state": str(tmp_path / "state"), **config}, run_config or app())

    return make


def error(record: Tensor, client: str = "c00") -> float:
    """How far a record is from the nearest example of the client, at its worst number."""
    return float((torch.tensor(CLIENTS[client]["x"]) - record).abs().amax(1).min())


# -- The app's digest decides what a node does -------------------------------------------------------------------


def test_a_step_on_one_example_is_that_example(make_node: MakeNode) -> None:
    """Neither a Flower run nor an app gets such a step, unless the node's operator allows the app to take it."""
    single, usual = {"batch_size": 1, "learning_rate": 1.0}, app()
    for name, value in single.items():
        with pytest.raises(ConfigError, match=rf"schedule\.{name} is not open"):
            AppConfig(usual).on_node({**usual, f"schedule.{name}": value})
    scalars = {**SCALARS, "learning_rate": 1.0}
    record, label = Curious(
        make_node(app(schedule=single), **fakes.ADMITTED), "c00", FEATURES, scalars=scalars
    ).by_one_step()
    assert error(record) < 1e-5
    assert label in CLIENTS["c00"]["y"]
    with pytest.raises(WireError, match=r"1 steps of 1 examples are fewer than 16.*larger batch_size.*min-examples"):
        Curious(make_node(app(schedule=single)), "c00", FEATURES, scalars=scalars).by_one_step()


CLIPPED = {"clip_norm": 0.01, "momentum": 0.5, "label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clip_norm": 1e9}, "clip_norm=1000000000.0 must be 0.01"),
        ({"learning_rate": 1.0}, "learning_rate=1.0 must be 0.5"),
        ({"momentum": 0.0}, "momentum=0.0 must be 0.5"),
        ({"weight_decay": 1.0}, "weight_decay=1.0 must be 0.0"),
        ({"label_smoothing": 0.0}, "label_smoothing=0.0 must be 0.1"),
    ],
)
def test_a_query_has_the_numbers_of_the_app(changes: dict[str, float], why: str, make_node: MakeNode) -> None:
    node, usual = make_node(app(schedule=CLIPPED)), {**SCALARS, **CLIPPED}
    moved = Curious(node, "c00", FEATURES, scalars=usual).update(torch.zeros(3, FEATURES + 1))
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-5), "what the app allows is answered, and clipped"
    with pytest.raises(WireError, match=f"^{why}, as in the app$"):
        Curious(node, "c00", FEATURES, scalars={**usual, **changes}).update(torch.zeros(3, FEATURES + 1))


def query(entry: str, scalars: dict[str, float], **changes: Any) -> RecordDict:
    """A message that asks a client to train."""
    ones, params = torch.ones(1, dtype=torch.float64), torch.zeros(3 * FEATURES + 3)
    run = replace(Query("train", 0, 0, (0,), ones, params, scalars), **changes)
    return encode_query(NodeQuery(entry, (0,), (run,), {0: "c00"}, 3, "training"))


def ask(node: Node, kind: str, content: RecordDict) -> RecordDict:
    reply = fakes.carried(answer(kind, lambda: node, fakes.carried(content)))
    check_refusal(reply)
    return reply


def test_rounds_and_seeds_are_those_of_the_app(make_node: MakeNode) -> None:
    node = make_node()
    ask(node, "train", query("fedavg", SCALARS, round=1))
    for changes, why in (({"round": 2}, "round=2 must be at most 1"), ({"seed": 1}, "seed=1 must be 0")):
        with pytest.raises(WireError, match=why):
            ask(node, "train", query("fedavg", SCALARS, **changes))


LEARNED = {**SCALARS, "gamma": 3.0, "radius": 0.1}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gamma": -1.0}, r"gamma=-1.0 must be in \[0.0, inf\]"),
        ({"radius": 0.3}, r"radius=0.3 must be in \[0.02.*, 0.2\]"),
        ({"radius": 0.01}, "radius=0.01 must be in"),
    ],
)
def test_a_learned_gamma_and_its_radius_stay_within_their_ranges(
    changes: dict[str, float], why: str, make_node: MakeNode
) -> None:
    node = make_node(app({"method": "WAFL", "radius": 0.2}))
    for change in ({}, {"gamma": 0.7}, {"radius": 0.2}):
        ask(node, "train", query("wafl", {**LEARNED, **change}))
    with pytest.raises(WireError, match=why):
        ask(node, "train", query("wafl", {**LEARNED, **changes}))


def test_a_gamma_that_is_not_learned_stays_as_it_is(make_node: MakeNode) -> None:
    node = make_node(app({"method": "WAFL", "gamma": 2.0}))
    ask(node, "train", query("wafl", {**SCALARS, "gamma": 2.0}))
    with pytest.raises(WireError, match=r"gamma=1.0 must be 2.0"):
        ask(node, "train", query("wafl", {**SCALARS, "gamma": 1.0}))


def test_a_node_of_an_app_with_partial_sums_sends_no_single_updates(make_node: MakeNode) -> None:
    values = app()
    content = query("fedavg", SCALARS)
    ask(make_node(values), "train", content)
    with pytest.raises(WireError, match=r"the app has flower\.partial_sums"):
        ask(make_node({**values, "flower.partial_sums": True}), "train", content)
    content["query"]["sums"] = True  # type: ignore[index]
    ask(make_node({**values, "flower.partial_sums": True}), "train", content)


# -- Crafted parameters ----------------------------------------------------------------------------------------------


def test_crafted_parameters_recover_a_record_and_that_is_a_documented_no(make_node: MakeNode) -> None:
    """Within everything that the app says: only noise at the node would help."""
    server = Curious(make_node(), "c00", FEATURES)
    assert error(server.by_crafted_parameters(BATCH)) < 1e-4
    assert server.messages <= 20


def test_one_update_at_the_first_model_has_a_record_that_is_alone_in_its_class_and_that_is_a_documented_no(
    make_node: MakeNode, tmp_path: Path
) -> None:
    """The server follows the protocol, and looks at the first update of a linear model, a mean over 16 examples."""
    clients = fakes.make_clients((16,), shape=(FEATURES,))
    clients["c00"]["y"][:] = 0
    clients["c00"]["y"][5] = 1
    config = app(schedule={"batch_size": 16})
    node = make_node(config, data=str(fakes.write(tmp_path / "alone", clients)))
    assert not bool(node.task(3)[1].any()), "the model begins at zero"
    server = Curious(node, "c00", FEATURES)
    means, shares = server.by_one_update()
    assert shares.tolist() == pytest.approx([15 / 16, 1 / 16, 0.0], abs=1e-6)
    assert float((means[1] - torch.tensor(clients["c00"]["x"][5])).abs().max()) < 1e-4
    assert server.messages == 1


def test_overlapping_batches_recover_every_record_and_that_is_a_documented_no(
    make_node: MakeNode, tmp_path: Path
) -> None:
    """The server numbers the clients, and a number decides which examples a step draws: here at the usual start."""
    known = {"x": np.eye(SIZE, dtype=np.float32), "y": np.arange(SIZE) % 3}
    folder = fakes.write(tmp_path / "twin", {"c00": known})
    twin = Node.of({"data": str(folder), "state": str(tmp_path / "twin state")}, app())
    server = Curious(make_node(), "c00", FEATURES)
    records = server.by_batches(Curious(twin, "c00", SIZE), 2 * SIZE)
    assert max(map(error, records)) < 1e-4
    assert server.messages <= 80


def test_watching_usual_rounds_recovers_every_record_and_that_is_a_documented_no(
    make_node: MakeNode, tmp_path: Path
) -> None:
    """The server follows the protocol: its parameters come from training, and it asks once in each round."""
    size, rounds = 20, 50
    clients = fakes.make_clients((size,), shape=(FEATURES,))
    known = {"x": np.eye(size, dtype=np.float32), "y": np.arange(size) % 3}
    config = app(schedule={"rounds": rounds, "batch_size": 16, "learning_rate": 0.01})
    places = [fakes.write(tmp_path / name, data) for name, data in (("small", clients), ("twin", {"c00": known}))]
    scalars = {**SCALARS, "learning_rate": 0.01}
    server, twin = (
        Curious(make_node(config, data=str(place)), "c00", features, scalars=scalars)
        for place, features in zip(places, (FEATURES, size), strict=True)
    )
    x, y = server.by_watching(twin, rounds, 40)
    assert float((x - torch.tensor(clients["c00"]["x"])).abs().max()) < 1e-3
    assert y.tolist() == clients["c00"]["y"].tolist()
    assert server.messages == rounds


def test_losses_that_decide_weights_recover_a_record_and_that_is_a_documented_no(make_node: MakeNode) -> None:
    server = Curious(make_node(app({"method": "DRFA"})), "c00", FEATURES, drfa=True)
    assert error(server.by_survey()) < 0.01
    assert server.messages <= 40


def test_tests_recover_a_test_example_and_that_is_a_documented_no(make_node: MakeNode) -> None:
    server = Curious(make_node(), "c00", FEATURES, tests=True)
    record = server.by_survey()
    assert float((torch.tensor(CLIENTS["c00"]["x_test"]) - record).abs().amax(1).min()) < 0.01
    assert server.messages <= 40


def test_more_outputs_than_classes_are_refused(make_node: MakeNode) -> None:
    with pytest.raises(WireError, match=r"has 3 classes or targets, the model 5 outputs.*num_classes of \[data\]"):
        Curious(make_node(), "c00", FEATURES).by_crafted_parameters(BATCH, extra=2)
    declared = Curious(make_node(app(data={"num_classes": 5})), "c00", FEATURES)
    assert error(declared.by_crafted_parameters(BATCH, extra=2)) < 1e-4, "what the app declares is answered"


# -- Questions of tasks that the app does not declare --------------------------------------------------------------


def test_mean_losses_recover_a_record_unless_the_app_declares_certificates(make_node: MakeNode) -> None:
    server = Curious(make_node(app(tasks=["train", "certify"])), "c00", FEATURES)
    assert error(server.by_survey()) < 1e-6
    assert server.messages <= 40
    with pytest.raises(
        WireError, match=r"this belongs to the task 'certify', and the app declares train: .*\[flower\]"
    ):
        Curious(make_node(), "c00", FEATURES).by_survey()


def test_cuts_of_one_point_recover_a_record(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """So they are of all examples, up to a thousand that the app's seed draws, and of fifty at least."""
    node = make_node(app(tasks=["mixture"]))
    with monkeypatch.context() as without:
        for name in ("POINTS", "FEWEST_POINTS"):
            without.setattr(examples, name, 1)
        assert error(Curious(node, "c00", FEATURES).by_cuts()) < 1e-6
    with pytest.raises(WireError, match=r"points=1 must lie in \[1000, 1000\]"):
        Curious(node, "c00", FEATURES).by_cuts()

    def cuts(client: str, seed: int = 0) -> RecordDict:
        return CutsQuery(
            (client,), (0,), torch.zeros(1, FEATURES).double(), torch.zeros(1).double(), 1000, seed
        ).encode()

    ask(node, "query.cuts", cuts("c02"))
    with pytest.raises(WireError, match="c00 have fewer than 50 training examples"):
        ask(node, "query.cuts", cuts("c00"))
    with pytest.raises(WireError, match=r"seed=1 must lie in \[0, 0\]"):
        ask(node, "query.cuts", cuts("c02", seed=1))
    with pytest.raises(WireError, match="belongs to the task 'mixture'"):
        ask(make_node(), "query.cuts", cuts("c02"))


def messages(node: Node, name: str = "c00") -> dict[str, RecordDict]:
    """A question of every kind about a client that may be answered, if the app declares its task."""
    size = 3 * FEATURES + 3
    params, points = torch.zeros(size), torch.zeros(1, FEATURES).double()
    train = query("afl", SCALARS)
    (loss,) = [Query("loss", 0, 0, (0,), torch.ones(1, dtype=torch.float64), params, SCALARS)]
    questions, model = Questions.of(QUESTIONS), node.model(3)
    return {
        "train": train,
        "evaluate": encode_query(NodeQuery("drfa", (0,), (loss,), {0: "c00"}, 3, "training")),
        "evaluate.test": queries.TestQuery(("c00",), False, params, 3, 0).encode(),
        "query.survey": SurveyQuery((name,), params.double(), 3, [{}], None, 0).encode(),
        "query.graph": GraphQuery(("c00",), params.double(), 3).encode(),
        "query.cuts": CutsQuery(("c02",), (0,), points, torch.zeros(1).double(), 1000, 0).encode(),
        "query.means": MeansQuery(("c02",), (0,), 3, FEATURES).encode(),
        "query.spread": SpreadQuery(("c00",)).encode(),
        "query.next_client": NextClientQuery(("c00",), model.state_dict(), 3, 9, questions).encode(),
        "query.personalize": PersonalizeQuery(("c00",), model.state_dict(), 3).encode(),
    }


METHODS = (
    {"method": "AFL"},
    {"method": "DRFA"},
    {"method": "WAFL", "name": "means", "cost_matrix": "clients"},
    {"method": "WAFL", "name": "spread", "radius": "auto"},
)
BELONGS = {
    "query.survey": "certify", "query.graph": "certify", "query.cuts": "mixture", "query.next_client": "next-client",
    "query.personalize": "personalize",
}  # fmt: skip
"""The task of each kind of message; the others are part of training."""


@pytest.mark.parametrize("task", ["train", "certify", "mixture"])
def test_a_node_answers_only_questions_of_the_tasks_that_the_app_declares(task: str, make_node: MakeNode) -> None:
    node, everything = make_node(app(*METHODS, tasks=[task])), ["train", "certify", "mixture"]
    asked = messages(node)
    assert {*asked, "query.hello"} == {*HANDLERS}
    liberal = make_node(app(*METHODS, tasks=everything, questions=QUESTIONS, personalize={"steps": 1}))
    for kind, content in asked.items():
        ask(liberal, kind, content)
        if BELONGS.get(kind, "train") == task:
            ask(node, kind, content)
        else:
            with pytest.raises(WireError, match="and the app declares"):
                ask(node, kind, content)


def test_a_flower_run_may_choose_only_declared_tasks() -> None:
    plain, asking = app(), app(questions=QUESTIONS, tasks=["train", "certify"])
    AppConfig(asking).on_node({**asking, "task": "certify"})
    AppConfig(asking).on_node({**asking, "task": "sets"})
    AppConfig(app(personalize={"steps": 1})).on_node({**app(personalize={"steps": 1}), "task": "personalize"})
    for config, task in (
        (plain, "certify"),
        (plain, "next-client"),
        (asking, "mixture"),
        (asking, "personalize"),
    ):
        with pytest.raises(ConfigError, match=rf"task = '{task}' must be one of train.*tasks of \[flower\]"):
            AppConfig(config).on_node({**config, "task": task})
        assert AppConfig(config).on_node({**config, "task": task}, own_data=False) == config, "a simulation may"


def test_a_part_of_the_experiments_data_set_is_answered_about_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a simulation; no message makes a node take its own data for such a part."""
    monkeypatch.setattr(fakes, "EVERYONE", [fakes.federation(CLIENTS)])
    config = app(schedule={"batch_size": 1}, data={"source": "tests.oracles.flower_fakes:everyone"})
    node = Node.of({"partition-id": 1, "num-partitions": 3}, config)
    record, _ = Curious(node, "c01", FEATURES).by_one_step()
    assert error(record, "c01") < 1e-5
    ask(node, "query.survey", messages(node, "c01")["query.survey"])
    with pytest.raises(ConfigError, match="engine is not a key of this app"):
        AppConfig(config).on_node({**config, "engine": "flower-sim"})


# -- Questions are counted -----------------------------------------------------------------------------------------


def test_every_question_counts(make_node: MakeNode, tmp_path: Path) -> None:
    tasks = ["train", "certify", "mixture"]
    node = make_node(app(*METHODS, tasks=tasks, questions=QUESTIONS, personalize={"steps": 1}))
    for number, (kind, content) in enumerate(messages(node).items(), start=1):
        ask(node, kind, content)
        assert sum(counted(tmp_path).values()) == number, kind
    assert counted(tmp_path).keys() == {"c00", "c02"}


def counted(folder: Path) -> dict[str, int]:
    return json.loads((folder / "state" / "questions.json").read_bytes())


def test_a_node_answers_no_more_questions_about_a_client_than_its_operator_allows(make_node: MakeNode) -> None:
    """In all runs of all apps, whenever the node starts; the limit ends attacks that take more."""
    server = Curious(make_node(app(tasks=["certify"]), **{"max-questions": 20}), "c00", FEATURES)
    with pytest.raises(WireError, match="c00 would answer its question 21, and its operator allows 20 in all runs"):
        server.by_survey()
    assert server.messages == 21
    for config in (app(), app({"method": "AFL"}, schedule={"rounds": 5})):
        node = make_node(config, **{"max-questions": 20})
        with pytest.raises(WireError, match="larger max-questions"):
            ask(node, "train", query("afl" if "methods.afl.method" in config else "fedavg", SCALARS))
        ask(node, "query.hello", config_only("query", sizes=True))
    other = replace_client(query("fedavg", SCALARS), "c02")
    ask(make_node(**{"max-questions": 20}), "train", other)
    ask(make_node(**{"max-questions": 21}), "train", query("fedavg", SCALARS))


def replace_client(content: RecordDict, name: str) -> RecordDict:
    content["query"]["names"] = [name]  # type: ignore[index]
    return content


def test_several_settings_of_a_survey_and_several_runs_are_several_questions(
    make_node: MakeNode, tmp_path: Path
) -> None:
    config = fakes.flat({"seeds": [0, 1], "methods": [{"method": "FedAvg"}], "schedule": SCHEDULE})
    ones, params = torch.ones(1, dtype=torch.float64), torch.zeros(3 * FEATURES + 3)
    runs = tuple(Query("train", 0, seed, (0,), ones, params, SCALARS) for seed in (0, 1))
    ask(make_node(config), "train", encode_query(NodeQuery("fedavg", (0, 1), runs, {0: "c00"}, 3, "training")))
    assert counted(tmp_path) == {"c00": 2}


def test_a_damaged_count_is_not_begun_again(make_node: MakeNode, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "questions.json").write_text("{")
    with pytest.raises(WireError):
        ask(make_node(), "train", query("fedavg", SCALARS))


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True])
def test_a_limit_is_a_whole_number(value: Any, make_node: MakeNode) -> None:
    for key in ("min-examples", "max-questions", "max-steps"):
        with pytest.raises(ConfigError, match=rf"node config: {key}=.* must be a whole number, at least 1"):
            make_node(**{key: value})


# -- Small clients -------------------------------------------------------------------------------------------------


def test_clients_with_few_examples_take_part_only_if_the_operator_allows_it(
    make_node: MakeNode, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeting = config_only("query", sizes=False)
    hello = Hello.decode(ask(make_node(), "query.hello", greeting), False)
    assert (hello.names, hello.small) == (("c00", "c02"), ("c01",))
    assert any("c01 have fewer than 16 training examples" in line and "min-examples=5" in line for line in logged())
    with pytest.raises(WireError, match=r"does not hold \['c01'\]"):
        ask(
            make_node(),
            "evaluate.test",
            queries.TestQuery(("c01",), False, torch.zeros(3 * FEATURES + 3), 3, 0).encode(),
        )
    with pytest.raises(WireError, match=r"c00, c01, c02 have fewer than 61 .* min-examples=5 in --node-config"):
        ask(make_node(**{"min-examples": 61}), "query.hello", greeting)
    for config in ({"min-examples": 5}, {}):
        monkeypatch.setenv("WAFL_MIN_EXAMPLES", "5")
        hello = Hello.decode(ask(make_node(**config), "query.hello", greeting), False)
        assert (hello.names, hello.small) == (("c00", "c01", "c02"), ())


def test_the_server_prints_who_has_too_few_examples(stage: Stage, logged: Logged) -> None:
    stage.clients = fakes.make_clients((20, 3, 20))
    experiment: dict[str, Any] = {
        "methods": [{"method": "FedAvg"}],
        "schedule": {"rounds": 1, "local_steps": 1, "learning_rate": 0.1},
        "attack": {"kind": "none"},
        "flower": {"nodes": 2, "wait": 5.0},
    }
    grid = stage.grid(experiment, [["c00", "c01"], ["c02"]])
    for host in grid.hosts:
        config = {"data": str(stage.root / f"node-{(host.number - 3) // 7}"), "state": str(stage.root / "state")}
        host.node = Node.of(config, fakes.flat(experiment))
    stage.train(experiment, grid)
    assert any("c01 have too few examples" in line and "min-examples" in line for line in logged())


def test_means_of_few_examples_are_not_sent(make_node: MakeNode) -> None:
    """The mean of one example is that example."""
    config = app({"method": "WAFL", "cost_matrix": "clients"})
    means = MeansQuery(("c02",), (0,), 3, FEATURES)
    sent = means.read(ask(make_node(config), "query.means", means.encode()))
    assert sent.counts.tolist() == [20, 20, 20]
    few = MeansQuery(("c00",), (0,), 3, FEATURES)
    assert few.read(ask(make_node(config), "query.means", few.encode())).counts.tolist() == []


# -- How many classes there are ------------------------------------------------------------------------------------

BASE: dict[str, Any] = {
    "name": "study",
    "methods": [{"method": "FedAvg"}],
    "schedule": {"rounds": 1, "local_steps": 1, "learning_rate": 0.1},
    "attack": {"kind": "none"},
    "flower": {"nodes": 3, "wait": 5.0},
}


def test_nodes_with_different_numbers_of_classes_need_a_declared_number(stage: Stage, logged: Logged) -> None:
    stage.clients["c02"]["y"] %= 2
    stage.clients["c02"]["y_test"] %= 2
    layout = [["c00"], ["c01"], ["c02"]]
    with pytest.raises(ConfigError, match=r"node 17: 2.*write the right one .*num_classes = 3 in \[data\]"):
        stage.train(BASE, stage.grid(BASE, layout))
    declared = {**BASE, "data": {"num_classes": 3}}
    stage.train(declared, stage.grid(declared, layout))
    (folder := stage.root / "more").mkdir()
    clients = {name: {key: np.array(value) for key, value in each.items()} for name, each in stage.clients.items()}
    clients["c01"]["y"][0] = 4
    grid = fakes.make_grid(stage.clock, folder, clients, layout, BASE)
    fakes.train(
        replace(grid, hosts=[grid.hosts[0], grid.hosts[1]]), {**declared, "flower": {"nodes": 2}}, folder / "study"
    )
    assert any("has 5 classes, and the experiment declares 3" in line for line in logged())


def test_a_node_takes_no_more_steps_in_a_round_than_its_operator_allows(make_node: MakeNode) -> None:
    """The steps of an adversary count, and so does the client with the most examples of those that are asked."""
    robust = {"method": "WAFL", "gamma": 5.0, "steps": 7}
    config, scalars = app({"method": "FedAvg"}, robust, schedule={"local_steps": 30}), {**SCALARS, "gamma": 5.0}
    for entry, steps, sent in (("fedavg", 30, SCALARS), ("wafl", 210, scalars)):
        ask(make_node(config, **{"max-steps": steps}), "train", query(entry, sent))
        with pytest.raises(WireError, match=f"a round of {steps} steps is more than {steps - 1}: .*larger max-steps"):
            ask(make_node(config, **{"max-steps": steps - 1}), "train", query(entry, sent))
    epochs = app(schedule={"local_steps": None, "local_epochs": 10**9})
    with pytest.raises(WireError, match="a round of 2000000000 steps is more than 1000000"):
        ask(make_node(epochs), "train", query("fedavg", SCALARS))
