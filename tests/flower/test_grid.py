"""Studies on a grid of nodes: the embedded engine's numbers to the last bit, whatever happens to nodes and server."""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from safetensors.torch import load_file
from tools.methods_page import entry

import wafl
from tests.flower.conftest import SIZES, UNEVEN, Logged, Stage, embedded
from tests.flower.runs import (
    BASE,
    FAKES,
    METHODS,
    NEXT_CLIENT,
    QUICK,
    SPREAD,
    TESTED,
    assert_near,
    assert_same,
    during,
    everyone,
    interrupt,
    keys,
    metrics,
    only,
    params,
    remembers,
    results,
)
from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import GONE, HANG, Fate, Grid, Host
from wafl.base.errors import CheckpointWarning, ConfigError, TooFewRepliesError, UnsoundError
from wafl.base.files import unsealed
from wafl.base.options import options_of
from wafl.config.read import parse_experiment
from wafl.flower.app import server
from wafl.flower.node.refusals import refusal
from wafl.flower.node.work import Node
from wafl.flower.server.exchange import Post
from wafl.flower.server.find_clients import Finder
from wafl.flower.wire.run_config import OWN
from wafl.flower.wire.values import NodeQuery
from wafl.parts.messages import Replies
from wafl.results.saved import load_run
from wafl.servers import AGGREGATES
from wafl.studies.folder import StudyFolder
from wafl.studies.study import Study
from wafl.tasks.task import Task
from wafl.theory.constants.constant import Constant
from wafl.train import optimum
from wafl.train.spec import Spec

LAYOUTS = {
    "uneven": UNEVEN,
    "one each": [["c00"], ["c01"], ["c02"], ["c03"], ["c04"], ["c05"]],
    "all at one": [["c00", "c01", "c02", "c03", "c04", "c05"]],
}


def keeps(method: wafl.Method) -> bool:
    """Whether clients keep something between rounds."""
    return remembers(method) or method.local.initial_memory(torch.zeros(3)) is not None


KEEPING: dict[str, dict[str, Any]] = {
    **{name.lower(): {"method": name} for name, preset in wafl.METHODS.items() if keeps(preset())},
    "fedrobust": {"method": "FedRobust", "step_size": 0.1},
    "remembering": {"method": f"{FAKES}:remembering"},
    "both": {"method": "FedRobust", "name": "both", "step_size": 0.1, "local": {"kind": "control_variates"}},
}
"""Methods whose clients keep something between rounds, by name; clients of the last one keep two things."""


def weights(folder: Path) -> list[float]:
    return load_run(folder).client_weights.tolist()


def assert_close(folder: Path, other: Path) -> None:
    """Parameters to 1e-5, as promised where they are not the same bits."""
    files = list(folder.rglob("params.safetensors"))
    assert files
    for file in files:
        mine, theirs = load_file(file), load_file(other / file.relative_to(folder))
        for name, value in mine.items():
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-5)


def history(folder: Path, method: str = "fedavg") -> list[dict[str, Any]]:
    return [row for row in metrics(folder) if row["method"] == method]


# -- The same numbers -------------------------------------------------------------------------------------------


MEAN = {**BASE, "methods": [each for each in METHODS if "server" not in each and "median" not in each["method"]]}
"""Without servers that look at single models, of which they see one per node."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        fakes.virtual(patch)
        return embedded(fakes.make_clients(SIZES), BASE, tmp_path_factory.mktemp("embedded") / "study")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_method_gives_the_embedded_numbers(layout: str, whole: Path, stage: Stage) -> None:
    """Parameters, metrics, client weights and results.json; nodes connect and reply in random order."""
    about = BASE if layout == "one each" else MEAN
    grid = stage.grid(about, LAYOUTS[layout])
    # Above 2.5, the default here: one of these updates is longer than that, and medians are over nodes.
    clip = {"clip": 3.0}
    stage.train({**about, "flower": {**BASE["flower"], "nodes": len(grid.hosts)}, "tolerance": clip}, grid)
    whole = whole if about is BASE else stage.embedded(MEAN)
    assert_same(stage.study, whole)
    for file in whole.rglob("run.json"):
        assert weights(file.parent) == weights(stage.study / file.relative_to(whole).parent)
    assert {seen.node for seen in grid.seen} == {host.number for host in grid.hosts}


@pytest.mark.slow
def test_the_methods_that_are_left_give_the_embedded_numbers(stage: Stage) -> None:
    left = set(wafl.METHODS) - {each["method"] for each in METHODS}
    assert {"IRM", "SinkhornDRO", "TERM"} <= left
    experiment = only(*({"method": name} for name in sorted(left, key=str.lower)))
    grid = stage.grid(experiment, LAYOUTS["one each"])  # some servers see one model per node
    stage.train({**experiment, "flower": {**BASE["flower"], "nodes": len(grid.hosts)}}, grid)
    assert_same(stage.study, stage.embedded(experiment))


EPOCHS = {"rounds": 3, "cohort": 5, "local_epochs": 1, "batch_size": 2, "learning_rate": 0.1}
"""Clients take different numbers of steps."""


@pytest.mark.slow
def test_every_server_gives_the_embedded_numbers(stage: Stage) -> None:
    """Eight clients, each on its own node: enough for every server with its default options."""
    stage = replace(stage, clients=fakes.make_clients((*SIZES, 4, 7)))
    methods = [{"method": "FedAvg", "name": kind, "server": {"kind": kind}} for kind in sorted(AGGREGATES)]
    experiment = only(*methods, schedule={**EPOCHS, "cohort": 8})
    grid = stage.grid(experiment, [[name] for name in stage.clients])
    # No update is shortened, and no client's weight is capped, as in the embedded engine.
    trusting = {"flower": {**BASE["flower"], "nodes": 8}, "tolerance": {"clip": 1e9}}
    stage.train({**experiment, **trusting}, grid)
    assert_same(stage.study, stage.embedded(experiment))


def sees_clients(method: wafl.Method) -> bool:
    """Whether the server does more than average, and sees every client of a node, or only their mean."""
    return method.server != wafl.FedAvg().server and (method.server.averages or not method.server.one_per_node)


@pytest.mark.parametrize("weights", ["by_examples", "uniform"])
@pytest.mark.parametrize("name", [name for name, preset in wafl.METHODS.items() if sees_clients(preset())])
def test_a_server_that_sees_clients_gives_the_embedded_numbers_wherever_they_are(
    name: str, weights: str, stage: Stage
) -> None:
    """With uniform weights, too, a server that needs the clients' numbers of steps is told their sizes."""
    experiment = only({"method": name, "client_weights": weights}, schedule=EPOCHS)
    trusting = {"tolerance": {"clip": 1e9}}
    stage.train({**experiment, **trusting})
    whole = stage.embedded(experiment)
    assert_same(stage.study, whole)
    if wafl.METHODS[name]().server.averages:
        summed = replace(stage, root=stage.root / "sums")
        summed.train({**experiment, **trusting, "flower": {**BASE["flower"], "partial_sums": True}})
        assert_close(summed.study, whole)


@pytest.mark.slow
def test_parts_that_cannot_be_compared_give_the_embedded_numbers(stage: Stage) -> None:
    """A sweep makes your own method once per value; two such methods must differ in something else."""
    swept = {"method": f"{FAKES}:halved", "options": {"share": [0.5, 0.25]}}
    experiment = only(swept, {"method": f"{FAKES}:halved", "name": "other", "rounds": 1})
    stage.train(experiment)
    assert_same(stage.study, stage.embedded(experiment))
    same = [{"method": f"{FAKES}:halved", "name": name, "options": {"share": 1 / len(name)}} for name in ("a", "bb")]
    with pytest.raises(ConfigError, match=r"a, bb cannot be told apart.*dataclasses"):
        replace(stage, root=stage.root / "undecided").train(only(*same))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_shaped_ball_gives_the_embedded_numbers(layout: str, stage: Stage) -> None:
    """A cost matrix in the file, and one that follows from the clients, who send the means of their classes once."""
    features = next(iter(stage.clients.values()))["x"][0].size
    experiment = only(
        {"method": "ResilientWAFL", "cost_matrix": "clients", "client_weights": "snapshot"},
        {"method": "WAFL", "cost_matrix": [1.0 + index % 3 for index in range(features)]},
        {"method": "WAFL", "name": "wafl-clients", "cost_matrix": "clients", "gamma": [0.5, 2.0], "rounds": 3},
    )
    grid = stage.grid(experiment, LAYOUTS[layout])
    stage.train({**experiment, "flower": {**BASE["flower"], "nodes": len(grid.hosts)}}, grid)
    assert_same(stage.study, stage.embedded(experiment))
    asked = [seen for seen in grid.seen if seen.kind == "query.means"]
    assert len(asked) == len(grid.hosts)
    assert {key for seen in asked for key in keys(seen.reply)} == MEANS


LAYER = {"kind": f"{FAKES}:hidden"}, {"method": "WAFL", "radius": 0.5, "space": "1", "cost_matrix": "clients"}
"""A network, and a ball at its hidden layer."""
UNLIMITED = {"clip": 100.0}
"""The tolerance of the embedded engine, whose clients are trusted."""


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_ball_at_a_layer_in_the_shape_of_clients_gives_the_embedded_numbers(layout: str, stage: Stage) -> None:
    """Clients send the means of their classes once for each layer, and no parameters travel for it."""
    model, method = LAYER
    inputs = {"method": "WAFL", "name": "inputs", "radius": 0.5, "cost_matrix": "clients"}
    other = {**method, "name": "other", "space": "2", "radius": [0.3, 1.0]}
    experiment = only(inputs, other, method, model=model, tolerance=UNLIMITED)
    grid = stage.grid(experiment, LAYOUTS[layout])
    stage.train({**experiment, "flower": {**BASE["flower"], "nodes": len(grid.hosts)}}, grid)
    assert_same(stage.study, stage.embedded(experiment))
    asked = [seen for seen in grid.seen if seen.kind == "query.means"]
    assert len(asked) == 3 * len(grid.hosts)
    assert {key for seen in asked for key in keys(seen.reply)} == MEANS
    assert all({*seen.query} == {"query"} for seen in asked)


def test_a_shape_of_clients_on_nodes_needs_all_of_them_and_no_other_ask(stage: Stage) -> None:
    asked = only({"method": "WAFL", "cost_matrix": "clients"})
    grid = stage.grid(asked)
    grid.hosts[0].fate = lambda kind, _: HANG if kind == "query.means" else None
    with pytest.raises(TooFewRepliesError, match=r"query.means: no usable reply from 1 clients"):
        stage.train(asked, grid)
    sums = {**asked, "flower": {**BASE["flower"], "partial_sums": True}}
    with pytest.raises(ConfigError, match=r"partial_sums: wafl has cost_matrix='clients', for which each client sends"):
        stage.train(sums)
    few = only({"method": "WAFL", "cost_matrix": "clients", "client_weights": "uniform"}, caps={"examples": 9})
    with pytest.raises(ConfigError, match=r"the class means of c04 cannot be right: it claims 10"):
        stage.train(few)


@pytest.mark.slow
def test_a_regression_gives_the_embedded_numbers(stage: Stage) -> None:
    """One of its updates is so long that it is shortened, here as there."""
    stage.clients = fakes.make_clients(SIZES, targets=2)
    experiment = only(
        {"method": "DRFA"},
        {"method": "FedRobust"},
        {"method": "WAFL", "gamma": 30.0},
        {"method": "WAFL", "name": "wafl-targets", "gamma": 30.0, "label_cost": 2.0},
        model={"loss": "squared_error"},
        attack={"steps": 2},
        evaluation={"attacked": [0.5]},
        tolerance={"clip": 3.0},
    )
    experiment["flower"] = {**QUICK["flower"], "nodes": len(SIZES)}
    stage.train(experiment, stage.grid(experiment, LAYOUTS["one each"]))
    assert_same(stage.study, stage.embedded(experiment))
    assert any(row.get("shortened") for row in metrics(stage.study))


@pytest.mark.slow
def test_dropout_drops_on_nodes_what_it_drops_here(stage: Stage) -> None:
    """Alone on its node, next to others, and with another padding."""
    stage.clients = fakes.make_clients(SIZES, dtype="float64")
    experiment = only({"method": "WAFL", "gamma": 2.0, "steps": 2}, model={"kind": f"{FAKES}:dropping"})
    stage.train(experiment)
    assert_close(stage.study, stage.embedded(experiment))


@pytest.mark.slow
def test_statistics_are_learned_and_kept_on_nodes_as_they_are_here(stage: Stage) -> None:
    """Also where losses are asked for after training, at the client's own statistics."""
    stage.clients = fakes.make_clients(SIZES, dtype="float64")
    experiment = only(
        {"method": "DRFA", "statistics": "fedbn"},
        {"method": "WAFL", "gamma": 2.0, "steps": 2, "statistics": ["averaged", "client"]},
        model={"kind": f"{FAKES}:normalized"},
        schedule={**QUICK["schedule"], "rounds": 3},
    )
    stage.train(experiment)
    here = stage.embedded(experiment)
    assert_close(stage.study, here)
    for mine, theirs in zip(metrics(stage.study), metrics(here), strict=True):
        for name in ("loss", *TESTED):
            assert mine.get(name) == pytest.approx(theirs.get(name), abs=1e-9)
    model = fakes.normalized(SimpleNamespace(num_outputs=3))
    drfa = [load_run(folder / "drfa", model=model) for folder in (stage.study, here)]
    assert drfa[0].client_weights.tolist() == pytest.approx(drfa[1].client_weights.tolist(), abs=1e-12)
    result = [load_file(file) for file in sorted(stage.study.rglob("params.safetensors"))]
    assert len(result) == 3
    assert all(float(each["1.running_mean"].abs().max()) > 0.01 for each in result)


@pytest.mark.slow
def test_a_ball_at_the_embedding_of_a_text_is_there_on_nodes_too(stage: Stage) -> None:
    draws = np.random.default_rng(4)
    for each in stage.clients.values():
        each |= {name: draws.integers(0, 9, (len(each[name]), 5)) for name in ("x", "x_test")}
    options = {name: set(options_of(preset.options)) for name, preset in wafl.METHODS.items()}
    quick = [name for name, run_values in options.items() if "space" in run_values and "steps" not in run_values]
    experiment = only(
        {"method": "WAFL", "radius": 0.2, "steps": 2, "space": "embedding"},
        *({"method": name, "space": "embedding"} for name in quick),
        model={"kind": f"{FAKES}:words"}, attack={"kind": "fgsm", "space": "embedding"},
    )  # fmt: skip
    stage.train({**experiment, "tolerance": {"clip": 3.0}})  # an update is longer than 2.5 times the median
    assert_close(stage.study, stage.embedded(experiment))
    assert history(stage.study, "wafl")[-1]["achieved_radius"] > 0.01
    with pytest.raises(ConfigError, match=r"attack: Words takes integers.*space='embedding'; or attack.kind = 'none'"):
        stage.embedded({**experiment, "attack": {"kind": "fgsm"}}, "refused")


@pytest.mark.parametrize("method", ["remembering", "both"])
def test_what_clients_keep_is_kept_in_double_precision_too(method: str, stage: Stage) -> None:
    stage.clients = fakes.make_clients(SIZES, dtype="float64")
    experiment = only(KEEPING[method], model={"kind": f"{FAKES}:double"})
    stage.train(experiment)
    assert_same(stage.study, stage.embedded(experiment))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["uneven", "one each"])
def test_a_network_gives_the_embedded_numbers(layout: str, stage: Stage) -> None:
    """To the last bit with ``exact``; without an objective to 1e-5."""
    stage.clients = fakes.make_clients(SIZES, shape=(1, 6, 6))
    attacked = [
        {"method": "FedRobust", "step_size": 0.1},
        {"method": "WAFL", "gamma": 2.0, "steps": 4, "local": {"kind": "control_variates"}},
    ]
    plain = [{"method": "DRFA"}, {"method": "FedAdam"}, {"method": "FedAvg"}, {"method": "SCAFFOLD"}]
    for methods, exact in ((attacked, True), (plain, layout == "uneven")):
        here = replace(stage, root=stage.root / f"{methods[0]['method']}-{exact}")
        experiment = only(
            *methods,
            model={"kind": "cnn", "channels": [2, 3]},
            flower={"nodes": len(LAYOUTS[layout]), "wait": 5.0, "exact": exact},
        )
        here.train(experiment, here.grid(experiment, LAYOUTS[layout]))
        compare = assert_same if exact and methods == attacked else assert_close
        compare(here.study, here.embedded(experiment))


@pytest.mark.slow
def test_a_lipschitz_network_on_moved_images_gives_the_embedded_numbers(stage: Stage) -> None:
    stage.clients = fakes.make_clients(SIZES, shape=(1, 6, 6))
    experiment = only(
        {"method": "WAFL", "gamma": 2.0, "steps": 3},
        {"method": "FedAvgM"},
        model={"kind": "lipschitz", "width": 4, "depth": 2, "loss": "margin(0.5, 0.25)"},
        schedule={**only()["schedule"], "shift": 1, "flip": 0.5},
    )
    stage.train(experiment, stage.grid(experiment, UNEVEN))
    assert_close(stage.study, stage.embedded(experiment))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["by_examples", "uniform"])
def test_clients_smaller_than_a_batch_give_the_embedded_numbers(rule: str, stage: Stage) -> None:
    """Even if the server does not know how large clients are."""
    stage.clients = fakes.make_clients((3, 8, 6, 5, 10, 2), shape=(20,))
    experiment = only(
        {"method": "FedAvg", "client_weights": rule},
        {"method": "WAFL", "gamma": 5.0, "client_weights": rule},
        schedule={"rounds": 3, "cohort": 4, "local_steps": 2, "learning_rate": 0.1},
    )
    stage.train(experiment)
    assert_same(stage.study, stage.embedded(experiment))


@pytest.mark.slow
def test_partial_sums_give_the_embedded_numbers_up_to_rounding(whole: Path, stage: Stage) -> None:
    needs_models = lambda method: (  # noqa: E731
        "optimizer" in method.get("server", {}) or method["method"] in (f"{FAKES}:median", "QFFL", "ScaffPD")
    )
    methods = [method for method in METHODS if not needs_models(method)]
    experiment = {**BASE, "methods": methods, "flower": {"nodes": 3, "wait": 5.0, "partial_sums": True}}
    grid = stage.train(experiment)
    assert_close(stage.study, whole)
    assert all("agreement" in row for row in history(whole))
    assert not any("agreement" in row for row in history(stage.study)), "the lengths of updates are unknown"
    for seen in grid.seen:
        if seen.kind == "train":
            rows = {name: array.shape[0] for name, array in seen.reply["vectors"].items()}
            assert rows == dict.fromkeys(seen.reply["vectors"], len(seen.query["query"]["runs"]))
            assert "params" in rows


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ({"method": f"{FAKES}:median"}, "median has server=Median.*needs each client's model"),
        ({"method": "FedAvg", "server": {"kind": "krum"}}, r"fedavg has server=Krum\(.*needs each client's model"),
        ({"method": "DRFA", "local": {"kind": "control_variates"}}, r"drfa learns its client weights.*\(control\)"),
        ({"method": "ScaffPD"}, "scaffpd needs the gradient of each client: leave partial_sums out"),
        ({"method": "QFFL"}, "qffl needs the length of each client's update: leave partial_sums out"),
    ],
)
def test_partial_sums_are_refused_for_methods_that_need_more_than_a_mean(
    method: dict[str, Any], why: str, stage: Stage
) -> None:
    experiment = only(method, flower={"nodes": 3, "wait": 5.0, "partial_sums": True})
    grid = stage.grid(experiment)
    with pytest.raises(ConfigError, match=why):
        stage.train(experiment, grid)
    assert grid.seen == []
    assert not stage.study.exists()


class Broken(Node):
    """The update of client c05 holds a NaN."""

    def answer(self, query: NodeQuery, spec: Spec, task: Task) -> list[Replies]:
        result = super().answer(query, spec, task)
        for each, replies in zip(query.queries, result, strict=True):
            for index, client in enumerate(each.clients):
                if query.names[client] == "c05" and each.kind == "train":
                    replies.params[index, 1] = math.nan
        return result


@pytest.mark.parametrize("partial_sums", [False, True])
def test_a_client_with_nan_is_left_out_and_its_nodes_other_clients_count(partial_sums: bool, stage: Stage) -> None:
    """As if it had not been asked: the weighted mean of the five others."""
    methods = ({"method": "AFL", "rounds": 1}, {"method": "FedAvg", "cohort": 6, "rounds": 1})
    experiment = only(*methods, flower={"nodes": 3, "wait": 5.0, "partial_sums": partial_sums})
    grid = stage.grid(experiment, node=Broken)
    stage.train(experiment, grid)
    stage.clients = {name: arrays for name, arrays in stage.clients.items() if name != "c05"}
    assert_close(stage.study, stage.embedded(only(methods[0], {**methods[1], "cohort": 5})))
    for method in ("afl", "fedavg"):
        ((client, why),) = history(stage.study, method)[0]["excluded"]
        assert client == 5
        assert "NaN" in why


# -- What leaves a client ---------------------------------------------------------------------------------------

HELLO = {"reply.format", "reply.names", "reply.shape", "reply.classes", "reply.outputs", "reply.unit", "reply.tested"}
WORK = {"reply.format", "numbers.loss", "numbers.cost"}
TEST = {"reply.format", "reply.sizes", "reply.losses", "reply.right"}


def listed(method: str) -> dict[str, set[str]]:
    """All that a node may send, by the message that it replies to: what the list of methods says in words."""
    words = entry(method).sends.split(", ")
    sizes = {"reply.sizes"} if "size" in words else set[str]()
    trained = {"vectors.params", *(f"vectors.{word}" for word in words if word in ("snapshot", "control"))}
    result = {"query.hello": HELLO | sizes, "train": WORK | trained, "evaluate.test": TEST}
    if any(word.startswith("then ") for word in words):
        result["evaluate"] = WORK | {f"vectors.{word}" for word in words if word == "gradient"}
    return result


def sent(grid: Grid) -> dict[str, set[str]]:
    collected: dict[str, set[str]] = {}
    for seen in grid.seen:
        collected.setdefault(seen.kind, set()).update(keys(seen.reply))
    return collected


OPTIONAL = {"reply.small", "reply.bounds", "reply.labels", "reply.node", "reply.numbers", "reply.privacy"}
"""What only some nodes have to say when they connect."""
SURVEY = {"reply.format", "reply.count", "numbers.value", "numbers.cost"}
MOMENTS = {"reply.sizes"}
GRAPH = {"reply.format", "reply.same"}
CUTS = {"reply.format", "numbers.means", "numbers.shares"}
MEANS = {"reply.format", "reply.labels", "reply.places", "reply.counts", "numbers.means"}


def documented(method: str) -> dict[str, set[str]]:
    """What the page on Flower says a node sends: the keys by message, in the rows for all methods or for this one."""
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    table = page.partition("## What leaves a client")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    collected: dict[str, set[str]] = {}
    for message, sent, _, methods in rows[2:]:
        words = re.findall("`(.*?)`", methods.partition(",")[0]) if methods.startswith("those that send") else []
        received = method != "none" and set(words) & set(entry(method).sends.split(", "))
        if methods.startswith(("all", method)) or received:
            collected.setdefault(re.findall("`(.*?)`", message)[0], set()).update(re.findall("`(.*?)`", sent))
    return collected


@pytest.mark.parametrize("method", wafl.METHODS)
def test_the_page_on_flower_lists_what_leaves_a_client_key_by_key(method: str) -> None:
    """The next tests compare the list of methods with what nodes send."""
    result = documented(method)
    assert result["query.hello"] >= OPTIONAL
    assert {kind: sent - OPTIONAL for kind, sent in result.items()} == listed(method)
    assert {kind: sent for kind, sent in documented("none").items() if kind not in listed("DRFA")} == {
        "query.survey": SURVEY | MOMENTS,
        "query.graph": GRAPH,
        "query.next_client": NEXT_CLIENT,
        "query.personalize": {"reply.format"},
        "query.cuts": CUTS,
        "query.means": MEANS,
        "query.spread": SPREAD,
    }


CONTROL = {"local": {"kind": "control_variates"}}


@pytest.mark.parametrize(
    ("method", "more"),
    [
        *(({"method": name}, set[str]()) for name in wafl.METHODS),
        ({"method": "WAFL", "server": {"kind": "adam"}, "clip_norm": 0.1}, set[str]()),
        ({"method": "WAFL", **CONTROL}, {"vectors.control"}),
        ({"method": "DRFA", **CONTROL}, {"vectors.control"}),
        ({"method": f"{FAKES}:remembering"}, {"vectors.change", "vectors.size"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_nothing_leaves_a_node_except_what_is_listed(method: dict[str, Any], more: set[str], stage: Stage) -> None:
    """In addition to the list, what the local step declares that it sends."""
    experiment = only({**method, "rounds": 1})
    grid = stage.train(experiment)
    usual = listed("WAFL" if ":" in method["method"] else method["method"])
    assert sent(grid) == {**usual, "train": usual["train"] | more}


@pytest.mark.filterwarnings("default::wafl.OptimumWarning")
def test_the_optimum_is_checked_on_nodes_if_the_experiment_says_so(
    stage: Stage, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimum, "MOST_FALL", -1.0)  # anything is said
    experiment = only({"method": "WAFL", "gamma": 2.0}, {"method": "DRFA"}, evaluation={"check_optimum": True})
    with pytest.warns(wafl.OptimumWarning) as caught:
        stage.embedded(experiment)
    grid = stage.train(experiment)
    (expected,) = [str(each.message) for each in caught if each.category is wafl.OptimumWarning]
    assert [each for each in logged() if "not at its optimum" in each] == [expected]
    asked = [seen for seen in grid.seen if seen.kind == "evaluate" and seen.query["query"]["entry"] == "wafl"]
    assert len(asked) == 3 * 11
    assert {key for seen in asked for key in keys(seen.reply)} == WORK | {"vectors.gradient"}


def test_private_clients_send_no_gradients(stage: Stage) -> None:
    private = {"privacy": {}, "evaluation": {"check_optimum": True}}
    with pytest.raises(ConfigError, match="check_optimum looks at gradients without noise: leave it out, or privacy"):
        stage.embedded(only({"method": "FedAvg", "client_weights": "uniform"}, **private))


@pytest.mark.parametrize(
    ("method", "received"),
    [
        ({"method": "WAFL", "client_weights": "uniform"}, False),
        ({"method": "WAFL", "client_weights": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}, False),
        ({"method": "DRFA"}, False),
        ({"method": "DRFA", "local_epochs": 1}, True),
        ({"method": "DRFA", "local_steps": [1, 2]}, False),
        ({"method": "WAFL"}, True),
        ({"method": "TERM", "center": "uniform"}, False),
    ],
)
def test_sizes_leave_a_node_only_for_methods_that_count_examples(
    method: dict[str, Any], received: bool, stage: Stage
) -> None:
    experiment = only({**method, "rounds": 1})
    stage.clients = {name: {"x": each["x"], "y": each["y"]} for name, each in stage.clients.items()}
    grid = stage.train(experiment)
    assert ("reply.sizes" in sent(grid)["query.hello"]) == received
    roster = unsealed((stage.study / "roster.json").read_bytes())
    assert roster["num_examples"] == (list(SIZES) if received else [0] * 6)
    assert "evaluate.test" not in sent(grid)


# -- Interruptions of the server --------------------------------------------------------------------------------

RESUMED = {
    "drfa": only(
        {"method": "DRFA"},
        {"method": "FedRobust", "step_size": 0.1, "rounds": 5},
        {"method": "WAFL", "radius": [0.3, 0.6], "rounds": 3},
    ),
    "scaffold": only(
        {"method": "DRFA", "local": {"kind": "control_variates"}},
        {"method": f"{FAKES}:remembering", "options": {"pull": [0.2, 0.8]}, "rounds": 5},
        {"method": "SCAFFOLD", "server": {"kind": "yogi"}, "rounds": 3},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("methods", RESUMED)
def test_a_study_that_was_interrupted_ends_with_the_same_numbers(methods: str, every: int, stage: Stage) -> None:
    """After any query: between the two of DRFA too, and for methods whose clients or server keep something."""
    experiment = {**RESUMED[methods], "checkpoint_every": every}
    reference, folder = stage.embedded(experiment), stage.study
    for at in {1: (2, 5, 6, 11), 3: (6, 8, 9)}[every]:
        shutil.rmtree(folder, ignore_errors=True)
        grid = stage.grid(experiment)
        interrupt(grid, at)
        with pytest.raises(KeyboardInterrupt):
            stage.train(experiment, grid)
        stage.train(experiment)
        assert_same(folder, reference)


@pytest.mark.slow
@pytest.mark.parametrize("at_layer", [False, True])
def test_a_ball_with_the_shape_of_clients_is_resumed_with_the_same_shape(at_layer: bool, stage: Stage) -> None:
    """The server asks the same clients again, at the parameters of the start, and no client may have joined."""
    model, method = LAYER if at_layer else ({}, {"method": "WAFL", "cost_matrix": "clients"})
    experiment = only({**method, "rounds": 3}, model=model, tolerance=UNLIMITED)
    grid = stage.grid(experiment)
    interrupt(grid, 3)
    with pytest.raises(KeyboardInterrupt):
        stage.train(experiment, grid)
    more = replace(stage, clients=fakes.make_clients((*SIZES, 4)))
    more.train(experiment, more.grid(experiment, [*UNEVEN, ["c06"]]))
    assert_same(stage.study, stage.embedded(experiment))


@pytest.mark.parametrize(("every", "damaged"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("method", ["scaffold", "remembering", "both"])
def test_a_killed_server_resumes_although_its_nodes_are_ahead(
    method: str,
    every: int,
    damaged: bool,
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From its last checkpoint, or from the one before if the last is damaged."""
    experiment = only({**KEEPING[method], "rounds": 9}, checkpoint_every=every)
    reference, folder = stage.embedded(experiment), stage.study
    grid = stage.grid(experiment)

    def before(kind: str, round: int | None) -> None:
        if round == 8:
            shutil.copytree(folder, stage.root / "then")
            raise KeyboardInterrupt

    grid.before_push = before
    Study.create(
        parse_experiment({**experiment, "engine": "flower"}, "here"), folder, None, finder_of(grid, experiment, folder)
    )
    with pytest.raises(KeyboardInterrupt):
        stage.train(experiment, grid)
    shutil.rmtree(folder)
    (stage.root / "then").rename(folder)
    if damaged:
        last = sorted((folder / "checkpoint" / method).glob("*/state.safetensors"))[-1]
        *rest, end = last.read_bytes()
        last.write_bytes(bytes([*rest, end ^ 255]))
    again = stage.grid(experiment)
    with warnings.catch_warnings():
        warnings.simplefilter("default", CheckpointWarning)
        stage.train(experiment, again)
    assert ("the checkpoint before it" in caplog.text) == damaged, "the server's log reports it"
    rounds = sorted({seen.round for seen in again.seen if seen.round is not None})
    assert rounds[0] == {(1, False): 8, (3, False): 6, (3, True): 3}[every, damaged]
    assert_same(folder, reference)


def finder_of(grid: Grid, experiment: dict[str, Any], folder: Path) -> Any:
    parsed = parse_experiment({**experiment, "engine": "flower"}, "here")
    return Finder(Post(grid), parsed, folder)  # type: ignore[arg-type]


# -- Nodes that come and go -------------------------------------------------------------------------------------


def participants(row: dict[str, Any]) -> list[int]:
    out = [client for client, why in row["excluded"] if not why.startswith("loss: ")]
    return [client for client in row["cohort"] if client not in out]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ({"method": "FedAvg"}, [size / sum(SIZES) for size in SIZES]),
        ({"method": "FedAvg", "client_weights": "uniform"}, [1 / 6] * 6),
    ],
)
def test_a_node_that_joins_late_takes_part_from_the_next_round_on(
    method: dict[str, Any], expected: list[float], stage: Stage
) -> None:
    """It connects during round 2 and is asked from round 3 on."""
    experiment = everyone(method, flower={"nodes": 2, "wait": 5.0})
    layout = [["c00"], ["c01", "c02", "c03"], ["c05", "c04"]]
    grid = stage.grid(experiment, layout)
    grid.hosts[2].here = False
    grid.before_push = during(2, lambda: setattr(grid.hosts[2], "here", True))
    stage.train(experiment, grid)
    rows = history(stage.study)
    assert [row["cohort"] for row in rows] == [[0, 1, 2, 3]] * 3 + [[0, 1, 2, 3, 4, 5]] * 3
    assert all(row["excluded"] == [] for row in rows)
    assert weights(stage.study / "fedavg") == pytest.approx(expected, abs=1e-15)
    roster = unsealed((stage.study / "roster.json").read_bytes())
    assert roster["names"] == ["c00", "c01", "c02", "c03", "c04", "c05"]
    for seen in grid.seen:
        if seen.kind == "train" and seen.round is not None and seen.round > 2:
            asked = seen.query["query"]
            assert asked["weights"] == pytest.approx([expected[client] for client in asked["clients"]], abs=1e-15)


def test_a_node_that_leaves_is_left_out_and_rejoins_under_another_number(stage: Stage) -> None:
    experiment = everyone({"method": "FedRobust", "step_size": 0.1})
    grid = stage.grid(experiment)
    first = grid.hosts[0]

    def leave() -> None:
        first.here = False

    def come_back() -> None:
        config = {"data": str(stage.root / "node-0"), "state": str(stage.root / "state-0"), **fakes.ADMITTED}
        grid.hosts.append(Host(1000, Node.of(config, fakes.flat(experiment))))

    steps = [during(2, leave), during(3, come_back)]
    grid.before_push = lambda kind, at: [step(kind, at) for step in steps] and None
    stage.train(experiment, grid)
    rows = history(stage.study, "fedrobust")
    assert [3 in participants(row) for row in rows] == [True, True, False, False, True, True]
    assert all(set(participants(row)) >= {0, 1, 2, 4, 5} for row in rows)
    assert rows[2]["excluded"][0][0] == 3
    assert rows[3]["excluded"] == [[3, "no node holds it"]]
    assert [row["attempts"] for row in rows] == [1] * 6


def test_if_two_nodes_without_keys_claim_a_client_the_first_is_asked_until_it_is_silent(stage: Stage) -> None:
    """A node was restarted, and the SuperLink still lists the old one."""
    experiment = everyone({"method": "AFL"})
    grid = stage.grid(experiment)
    again = Host(1, Node.of({"data": str(stage.root / "node-0"), **fakes.ADMITTED}, fakes.flat(experiment)))
    grid.before_push = during(1, lambda: grid.hosts.append(again))
    grid.hosts[0].fate = lambda kind, at: HANG if at == 3 or (at is None and grid.clock.now > 1) else None
    stage.train(experiment, grid)
    asked = {at: {seen.node for seen in grid.seen if seen.round == at} for at in range(6)}
    old = {host.number for host in grid.hosts[:3]}
    assert asked[0] == asked[1] == asked[2] == old
    assert asked[4] == asked[5] == {*old, 1} - {grid.hosts[0].number}
    assert [client for client, _ in history(stage.study, "afl")[3]["excluded"]] == [3]


def fates(*kinds_of: tuple[int, Fate]) -> Callable[[str, int | None], Fate]:
    """For the work of these rounds, once each."""
    left = dict(kinds_of)
    return lambda kind, at: left.pop(at, None) if kind == "train" and at is not None else None


def test_silent_slow_and_wrong_nodes_are_left_out_with_a_reason(stage: Stage) -> None:
    """A node with one client of six fails in every way; none of its replies is used, and the others go on."""
    experiment = everyone({"method": "FedAvg"}, flower={"nodes": 3, "wait": 5.0, "round_timeout": 20.0})
    experiment["schedule"] = {**experiment["schedule"], "rounds": 9}
    grid = stage.grid(experiment)
    nan = lambda reply: fakes.spoiled(reply, "vectors", "params", lambda x: x * math.nan)  # noqa: E731
    wide = lambda reply: fakes.spoiled(reply, "vectors", "params", lambda x: torch.cat([x, x], 1))  # noqa: E731
    huge = lambda reply: fakes.spoiled(reply, "vectors", "params", lambda x: x * 1e9)  # noqa: E731
    grid.hosts[0].fate = fates(
        (0, 5.0), (1, HANG), (2, 25.0), (3, nan), (4, wide), (5, huge), (6, lambda _: RecordDict()),
        (7, lambda _: refusal("error", "I will not")),
    )  # fmt: skip
    stage.train(experiment, grid)
    rows = history(stage.study)
    reasons = [dict(row["excluded"]).get(3, "") for row in rows]
    wanted = ["", "20 s", "20 s", "NaN", "shape (1, 30)", "length", "record", "I will not", ""]
    for reason, part in zip(reasons, wanted, strict=True):
        assert (part in reason) if part else reason == ""
    assert all(participants(row) == [0, 1, 2, 3, 4, 5] or row["excluded"] for row in rows)
    reference = {**experiment, "schedule": {**experiment["schedule"], "rounds": 1}}
    alone = stage.embedded(reference)
    assert history(alone)[0]["loss"] == rows[0]["loss"]


@pytest.mark.parametrize("method", KEEPING)
def test_a_round_without_enough_replies_is_repeated_and_logged(method: str, stage: Stage, logged: Logged) -> None:
    """Clients that had replied are asked again, and begin with what they kept before the round."""
    experiment = everyone(KEEPING[method], tolerance={"clip": 1e9})
    reference = stage.embedded(experiment)
    grid = stage.grid(experiment)
    grid.latency = 0.0
    for host in grid.hosts[1:]:
        host.fate = fates((2, HANG))
    stage.train(experiment, grid)
    mine, theirs = history(stage.study, method), history(reference, method)
    assert [row.pop("attempts") for row in mine] == [1, 1, 2, 1, 1, 1]
    assert [row.pop("attempts") for row in theirs] == [1] * 6
    assert mine == theirs
    assert params(stage.study) == params(reference)
    assert any("round 2: asking again, attempt 2" in line for line in logged())
    assert any("round 2: c04: no reply in 20 s from node 17" in line for line in logged())


@pytest.mark.parametrize("method", ["scaffold", "both"])
def test_with_no_node_left_training_stops_in_time_and_can_be_resumed(method: str, stage: Stage) -> None:
    experiment = everyone(KEEPING[method], tolerance={"attempts": 2})
    reference = stage.embedded({**experiment, "tolerance": None})
    folder = stage.study
    grid = stage.grid(experiment)
    parsed = parse_experiment({**experiment, "engine": "flower"}, "here")
    Study.create(parsed, folder, None, finder_of(grid, experiment, folder))
    began: list[float] = []

    def all_leave() -> None:
        began.append(stage.clock.now)
        for host in grid.hosts:
            host.here = False

    grid.before_push = during(4, all_leave)
    with pytest.raises(TooFewRepliesError, match="round 4"):
        stage.train(experiment, grid)
    assert stage.clock.now - began[0] <= 2 * (20.0 + 5.0 + 1.0)
    again = stage.train(experiment)
    assert min(seen.round for seen in again.seen if seen.round is not None) == 4
    assert_same(folder, reference)


def test_with_no_node_left_to_test_the_study_stops_and_a_resume_only_tests(stage: Stage) -> None:
    experiment = everyone({"method": "AFL"}, tolerance={"attempts": 2})
    reference = stage.embedded({**experiment, "tolerance": None})
    grid = stage.grid(experiment)
    for host in grid.hosts:
        host.fate = lambda kind, _: GONE if kind == "evaluate.test" else None
    began = stage.clock.now
    with pytest.raises(TooFewRepliesError):
        stage.train(experiment, grid)
    assert stage.clock.now - began <= 2 * (20.0 + 5.0 + 1.0)
    assert not StudyFolder(stage.study).read_results().get("finished")
    again = stage.train(experiment)
    assert [seen for seen in again.seen if seen.round is not None] == []
    assert_same(stage.study, reference)


@pytest.mark.parametrize(("present", "least", "enough"), [(0, 1, False), (1, 2, False), (2, 2, True), (1, 1, True)])
def test_the_server_waits_for_nodes_no_longer_than_it_is_told(
    present: int, least: int, enough: bool, stage: Stage
) -> None:
    experiment = only({"method": "AFL", "rounds": 1}, flower={"nodes": 3, "min_nodes": least, "wait": 30.0})
    grid = stage.grid(experiment, UNEVEN[:present])
    if not enough:
        with pytest.raises(TooFewRepliesError, match=rf"{present} nodes .* 30 s.*{least} are needed.*min_nodes"):
            stage.train(experiment, grid)
        assert not stage.study.exists()
    else:
        stage.train(experiment, grid)
    assert 30.0 <= stage.clock.now <= 33.0


def test_the_server_starts_at_once_when_all_its_nodes_are_there(stage: Stage) -> None:
    experiment = only({"method": "AFL", "rounds": 1}, flower={"nodes": 3, "wait": 30.0})
    stage.train(experiment)
    assert stage.clock.now < 3.0


def test_a_node_with_data_of_another_kind_takes_no_part(stage: Stage) -> None:
    """Another shape, a regression among classifiers, or, joining late, a label that the model has no output for."""
    experiment = everyone({"method": "AFL"}, flower={"nodes": 2, "wait": 5.0})
    grid = stage.grid(experiment, [["c00", "c01"], ["c02", "c03"]])
    later: list[Host] = []
    label = {"d2": {"x": stage.clients["c00"]["x"], "y": stage.clients["c00"]["y"] + 1}}
    for index, odd in enumerate((fakes.make_clients((4,), shape=(5,)), fakes.make_clients((4,), targets=3), label)):
        folder = fakes.write(stage.root / f"odd-{index}", odd)
        later.append(Host(100 + index, Node.of({"data": str(folder), **fakes.ADMITTED}, fakes.flat(experiment))))
    grid.before_push = during(1, lambda: grid.hosts.extend(later))
    stage.train(experiment, grid)
    assert {seen.kind for seen in grid.seen if seen.node >= 100} == {"query.hello"}
    assert len([seen for seen in grid.seen if seen.node >= 100]) == 3
    assert [row["cohort"] for row in history(stage.study, "afl")] == [[0, 1, 2, 3]] * 6


def test_with_fixed_weights_no_client_joins_late(stage: Stage) -> None:
    """Not even for another method of the study, and not after a restart."""
    fixed = {"method": "FedAvg", "client_weights": [1.0, 2.0, 3.0, 2.0]}
    experiment = {**everyone(fixed, flower={"nodes": 2, "wait": 5.0}), "methods": [{"method": "AFL"}, fixed]}
    grid = stage.grid(experiment, [["c00"], ["c01", "c02", "c03"], ["c05", "c04"]])
    grid.hosts[2].here = False
    grid.before_push = during(2, lambda: setattr(grid.hosts[2], "here", True))
    stage.train(experiment, grid)
    assert weights(stage.study / "fedavg") == pytest.approx([1 / 8, 2 / 8, 3 / 8, 2 / 8], abs=1e-15)
    assert {tuple(row["cohort"]) for row in metrics(stage.study)} == {(0, 1, 2, 3)}
    before = params(stage.study)
    stage.train(experiment, grid)
    assert params(stage.study) == before


def test_examples_outside_the_bounds_are_refused_as_in_the_embedded_engine(stage: Stage) -> None:
    experiment = everyone({"method": "WAFL", "bounds": [-0.5, 0.5]})
    with pytest.raises(ValueError, match="outside bounds"):
        stage.embedded(experiment)
    grid = stage.grid(experiment)
    with pytest.raises(TooFewRepliesError, match=r"does not fit its examples; its own log says why \(unfit\)"):
        stage.train(experiment, grid)


@pytest.mark.slow
def test_within_the_bounds_of_the_data_nodes_give_the_embedded_numbers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node keeps to the box that its data declare, which the server knows too; so do attacks."""
    box = (-3.5, 3.5)
    stage.clients = {
        name: {part: value.clip(*box) if part.startswith("x") else value for part, value in each.items()}
        for name, each in stage.clients.items()
    }
    methods = (
        {"method": "FedPGM", "epsilon": 2.0},
        {"method": "WAFL", "gamma": 0.05},
        {"method": "WAFL", "name": "wafl-free", "gamma": 0.3, "bounds": "none"},
        {"method": "WAFL", "name": "wafl-inf", "gamma": 0.1, "norm": "inf"},
    )
    experiment = only(*methods, attack={"epsilon": 1.0, "steps": 2}, evaluation={"attacked": [0.5]})
    everyone_here = fakes.federation
    monkeypatch.setattr(fakes, "federation", lambda clients: replace(everyone_here(clients), bounds=box))
    here = stage.embedded(experiment)
    grid = stage.grid(experiment)
    for host in grid.hosts:
        host.node.site = replace(host.node.site, federation=replace(host.node.site.federation, bounds=box))
    stage.train(experiment, grid)
    assert_same(stage.study, here)
    assert results(here)["attack"] == "l_inf PGD, epsilon 1 (input units), 2 steps, within [-3.5, 3.5]"
    kept = {name: row["method"]["objective"]["bounds"] for name, row in results(here)["methods"].items()}
    assert kept == {"FedPGM": [-3.5, 3.5], "WAFL": [-3.5, 3.5], "wafl-free": None, "wafl-inf": [-3.5, 3.5]}


# -- Certificates and distances ---------------------------------------------------------------------------------


def run_values(experiment: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**OWN, **fakes.flat(experiment), **{name: str(value) for name, value in values.items() if name != "norm"}}


@pytest.mark.parametrize("norm", [2.0, math.inf])
@pytest.mark.parametrize("targets", [0, 2])
def test_certificates_equal_those_computed_from_all_examples_in_one_place(
    norm: float, targets: int, stage: Stage
) -> None:
    stage.clients = fakes.make_clients(SIZES, targets=targets)
    loss = "squared_error" if targets else "cross_entropy"
    experiment = everyone({"method": "WAFL", "gamma": 30.0}, model={"loss": loss})
    grid = stage.train(experiment)
    grid.seen.clear()
    folder = stage.study / "wafl"
    server.certify(Post(grid), {**run_values(experiment, folder=folder, radii="[0.1, 0.5, 2.0]"), "norm": norm})  # type: ignore[arg-type]
    content = json.loads((folder / "certificates.json").read_text())
    expected = wafl.certify(
        load_run(folder), fakes.federation(stage.clients), radii=[0.1, 0.5, 2.0], norm=norm
    ).to_json()
    for row, other in zip(content["certificates"], expected["certificates"], strict=True):
        assert_near(row, other)
    assert_near(content["loss"], expected["loss"])
    assert {key for seen in grid.seen for key in keys(seen.reply) if seen.kind == "query.survey"} == SURVEY


def test_networks_are_certified_on_nodes_as_in_one_place(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of the experiment's own module, whose L_zz is unknown: along its margins."""
    for name in ("largest_slope", "largest_curvature"):  # a search, which proves nothing and takes seconds
        monkeypatch.setattr(import_module("wafl.theory.constants.estimates"), name, lambda *_: 1.0)  # pyright: ignore[reportUnknownLambdaType]
    experiment = everyone({"method": "FedAvg"}, model={"kind": f"{FAKES}:hidden"})
    grid = stage.train(experiment)
    grid.seen.clear()
    folder, here = stage.study / "fedavg", fakes.federation(stage.clients)
    server.certify(Post(grid), run_values(experiment, folder=folder, radii="[0.0, 0.5]"))  # type: ignore[arg-type]
    content = json.loads((folder / "certificates.json").read_text())
    run = load_run(folder, fakes.hidden(here))
    expected = wafl.certify(run, here, radii=[0.0, 0.5], achieved=False)
    assert expected.proven
    assert expected[1].value < expected[1].simple
    for row, other in zip(content["certificates"], expected.to_json()["certificates"], strict=True):
        assert_near(row, other)
    assert {key for seen in grid.seen for key in keys(seen.reply) if seen.kind == "query.survey"} == SURVEY
    flat = Constant(1e-3, "bound", "by layers, at these parameters")
    with monkeypatch.context() as changed:
        changed.setattr("wafl.flower.server.certify.data_free_constants", lambda *_: {"L_z": flat, "L_zz": flat})  # pyright: ignore[reportUnknownLambdaType]
        with pytest.raises(UnsoundError, match="was found as a bound on the expected loss, but"):
            server.certify(Post(grid), run_values(experiment, folder=folder, radii="[0.5]"))  # type: ignore[arg-type]
    (stage.study / "roster.json").unlink()
    with pytest.raises(ConfigError, match="certify a run in the folder of its study"):
        server.certify(Post(grid), run_values(experiment, folder=folder))  # type: ignore[arg-type]


def test_certificates_by_a_declared_constant_are_estimates_on_nodes_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = everyone({"method": "FedAvg"}, model={"kind": f"{FAKES}:declared"})
    grid = stage.train(experiment)
    folder = stage.study / "fedavg"
    lines: list[str] = []
    monkeypatch.setattr("wafl.flower.server.certify.log", lambda _, text, *parts: lines.append(text % parts))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    server.certify(Post(grid), run_values(experiment, folder=folder, radii="[0.1]"))  # type: ignore[arg-type]
    first, header, *_ = lines[-1].strip().splitlines()
    assert first.startswith("Not proven: this model has no proof")
    assert header.split()[2] == "estimate"
    content = json.loads((folder / "certificates.json").read_text())
    assert content["column"] == "estimate"
    assert "its Lipschitz constant is only attested (model.lipschitz)" in content["caveat"]


def certified_on_nodes(
    kind: str, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], wafl.Certificates]:
    """The certificates that nodes make of a module of your own, as a file has them, and those made in one place."""
    for name in ("largest_slope", "largest_curvature"):  # a search, which proves nothing and takes seconds
        monkeypatch.setattr(import_module("wafl.theory.constants.estimates"), name, lambda *_: 1.0)  # pyright: ignore[reportUnknownLambdaType]
    experiment = everyone({"method": "FedAvg"}, model={"kind": f"{FAKES}:{kind}"})
    grid = stage.train(experiment)
    grid.seen.clear()
    folder = stage.study / "fedavg"
    server.certify(Post(grid), run_values(experiment, folder=folder, radii="[0.0, 0.5]"))  # type: ignore[arg-type]
    assert sent(grid)["query.graph"] == GRAPH
    here = fakes.federation(stage.clients)
    expected = wafl.certify(load_run(folder, getattr(fakes, kind)(here)), here, radii=[0.0, 0.5], achieved=False)
    return json.loads((folder / "certificates.json").read_text()), expected


def test_a_module_of_your_own_is_compared_with_its_graph_where_the_examples_are(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, expected = certified_on_nodes("honest", stage, monkeypatch)
    assert expected.proven
    for row, other in zip(content["certificates"], expected.to_json()["certificates"], strict=True):
        assert_near(row, other)
    assert content["column"] == "certified"


def test_a_module_that_computes_something_else_than_its_graph_is_not_proven_on_nodes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, expected = certified_on_nodes("sly", stage, monkeypatch)
    assert not expected.proven
    assert (content["column"], {row["certified"] for row in content["certificates"]}) == ("estimate", {None})
    assert "it computes something else than its layers on examples of c0" in content["caveat"]


@pytest.mark.parametrize(("metric", "confidence"), [pytest.param("error", 0.9, marks=pytest.mark.slow), ("loss", 0.9)])
def test_error_rates_and_confidence_equal_those_computed_from_all_examples_in_one_place(
    metric: Any, confidence: float, stage: Stage
) -> None:
    box = (-9.0, 9.0)
    experiment = everyone({"method": "WAFL", "gamma": 30.0})
    grid = stage.grid(experiment)
    for host in grid.hosts:
        host.node.site = replace(host.node.site, federation=replace(host.node.site.federation, bounds=box))
    stage.train(experiment, grid)
    grid.seen.clear()
    folder = stage.study / "wafl"
    values = {**run_values(experiment, folder=folder, radii="[0.0, 0.3]"), "metric": metric, "confidence": confidence}
    server.certify(Post(grid), values)  # type: ignore[arg-type]
    content = json.loads((folder / "certificates.json").read_text())
    here = replace(fakes.federation(stage.clients), bounds=box)
    beyond: Any = {"split": "test", "confidence": confidence}
    expected = wafl.certify(load_run(folder), here, radii=[0.0, 0.3], metric=metric, achieved=False, **beyond)
    for row, other in zip(content["certificates"], expected.to_json()["certificates"], strict=True):
        assert_near({**row, "achieved": None}, other)
    assert (content["metric"], content["confidence"]) == (metric, confidence)
    assert_near(content["loss"], expected.loss)
    sent = {key for seen in grid.seen for key in keys(seen.reply) if seen.kind == "query.survey"}
    assert sent == SURVEY | MOMENTS


def test_a_certificate_needs_a_finite_reply_from_every_client(stage: Stage) -> None:
    experiment = everyone({"method": "AFL"}, tolerance={"attempts": 2})
    grid = stage.train(experiment)
    values = run_values(experiment, folder=stage.study / "afl")
    nan = lambda reply: fakes.spoiled(reply, "numbers", "value", lambda x: x * math.nan)  # noqa: E731
    for fate in (HANG, nan):
        grid.hosts[0].fate = lambda kind, _, fate=fate: fate if kind == "query.survey" else None
        with pytest.raises(TooFewRepliesError, match="c03"):
            server.certify(Post(grid), values)  # type: ignore[arg-type]
    assert not (stage.study / "afl" / "certificates.json").exists()
