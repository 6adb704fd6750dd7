"""Nodes that lie, on a grid: a false claim is left out by name, and the honest nodes train as without it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from tests.flower.conftest import SIZES, Logged, Stage
from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import Fate, Grid, Host
from wafl.base.errors import ConfigError, DivergedError
from wafl.base.files import unsealed
from wafl.config.experiment import Flower
from wafl.flower.node.hello import Hello
from wafl.flower.node.work import Node
from wafl.flower.server.census import Census
from wafl.flower.server.exchange import Post
from wafl.flower.wire.values import WireError
from wafl.results.saved import load_run
from wafl.studies.folder import StudyFolder
from wafl.studies.pages.progress import read_lines
from wafl.train.trust.caps import Caps

HONEST = [["c00", "c01"], ["c02", "c03", "c04"]]
"""Two honest nodes; the liar holds c05."""
BASE: dict[str, Any] = {
    "name": "study",
    "seeds": [2],
    "data": {"source": "tests.oracles.flower_fakes:everyone"},
    "schedule": {"rounds": 3, "local_steps": 2, "batch_size": 2, "learning_rate": 0.1},
    "attack": {"kind": "none"},
    "evaluation": {},
    "flower": {"nodes": 3, "wait": 5.0, "round_timeout": 20.0},
}


def experiment(method: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {**BASE, "methods": [method or {"method": "FedAvg"}], **changes}


def hello(**claims: Any) -> Callable[[str, int | None], Fate]:
    """The liar's greeting claims this."""

    def lie(reply: RecordDict) -> RecordDict:
        return RecordDict({**reply, "reply": ConfigRecord({**reply["reply"], **claims})})

    return lambda kind, _: lie if kind == "query.hello" else None


def number(name: str, value: float, kind: str = "train") -> Callable[[str, int | None], Fate]:
    """The liar's loss or cost is this."""

    def lie(reply: RecordDict) -> RecordDict:
        result = reply["numbers"]
        return RecordDict({**reply, "numbers": MetricRecord({**result, name: [value] * len(result[name])})})

    return lambda asked, _: lie if asked == kind else None


def train(stage: Stage, about: dict[str, Any], lie: Any, layout: Any = None) -> None:
    grid = stage.grid(about, layout or [*HONEST, ["c05"]])
    grid.hosts[-1].fate = lie or (lambda *_: None)
    stage.train(about, grid)


def assert_same(one: Stage, other: Stage) -> None:
    result = [[file.read_bytes() for file in sorted(each.study.rglob("params.safetensors"))] for each in (one, other)]
    assert result[0] == result[1] != []


def roster(stage: Stage) -> dict[str, Any]:
    return unsealed((stage.study / "roster.json").read_bytes())


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The training of the honest nodes alone."""
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(fakes.virtual(patch), tmp_path_factory.mktemp("honest"), fakes.make_clients(SIZES))
        train(stage, experiment(flower={**BASE["flower"], "nodes": 2}), None, HONEST)
    return stage


NAMES = ["c05", *(f"x{i:02d}" for i in range(30))]
CLAIMS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "examples": ({"sizes": [2 * 10**9]}, {}, "c05 takes no part: it claims 2000000000 examples, above caps.examples"),
    "cap": ({"sizes": [11]}, {"examples": 10}, "it claims 11 examples, above caps.examples = 10"),
    "classes": ({"classes": 10**6, "outputs": 10**6}, {}, "it claims 1000000 classes, above caps.classes = 1000"),
    "shape": ({"shape": [10**6, 10**6]}, {}, "with more than 1000000 numbers: declare caps.shape"),
    "declared": ({"shape": [5]}, {"shape": [4]}, "it claims examples of shape (5,), not caps.shape = (4,)"),
    "other": ({"shape": [5]}, {}, "its examples have shape (5,), examples of other nodes (4,): all nodes must agree"),
    "invented": (
        {"names": NAMES, "sizes": [5] * 31, "tested": ["c05"]},
        {"clients_per_node": 4},
        "it claims 31 clients, each with a vote, above 4: if its operator may speak for all of them, write "
        "caps.clients_per_node = 31",
    ),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_node_that_claims_too_much_is_left_out_and_the_honest_ones_train_as_without_it(
    claim: str, honest: Stage, stage: Stage, logged: Logged
) -> None:
    claims, caps, why = CLAIMS[claim]
    train(stage, experiment(caps=caps), hello(**claims))
    assert_same(stage, honest)
    assert roster(stage)["names"] == ["c00", "c01", "c02", "c03", "c04"]
    assert any(why in line for line in logged()), logged()


def test_a_liar_that_connects_first_does_not_decide_what_examples_look_like(honest: Stage, stage: Stage) -> None:
    about = experiment()
    grid = stage.grid(about, [*HONEST, ["c05"]])
    *others, liar = grid.hosts
    liar.fate = hello(shape=[5])
    for host in others:
        host.fate = lambda kind, _: 1.0 if kind == "query.hello" else None
    stage.train(about, grid)
    assert_same(stage, honest)


def test_one_client_of_a_node_that_claims_too_much_is_left_out_without_the_nodes_others(
    honest: Stage, stage: Stage, logged: Logged
) -> None:
    layout = [["c00", "c01"], ["c02", "c03", "c04", "c05"]]
    about = experiment(caps={"examples": 100}, flower={**BASE["flower"], "nodes": 2})
    train(stage, about, hello(sizes=[6, 5, 10, 101]), layout)
    assert_same(stage, honest)
    assert sum("c05 takes no part" in line for line in logged()) == 1


def test_a_test_that_claims_too_many_examples_does_not_count(stage: Stage, logged: Logged) -> None:
    """A claim of 2**60 correct tests would make the report say 100.0."""

    def lie(reply: RecordDict) -> RecordDict:
        claims = {**reply["reply"], "sizes": [2**60], "right": [1.0, 1.0]}
        return RecordDict({**reply, "reply": ConfigRecord(claims)})

    train(stage, experiment(), lambda kind, _: lie if kind == "evaluate.test" else None)
    assert any("the test of c05 does not count: it claims 1152921504606846976 test" in line for line in logged())
    without = {**stage.clients, "c05": {name: stage.clients["c05"][name] for name in ("x", "y")}}
    untested = replace(stage, root=stage.root / "untested", clients=without)
    train(untested, experiment(), None)
    content = [
        next(iter(StudyFolder(each.study).read_results()["methods"].values()))["clean"] for each in (stage, untested)
    ]
    assert content[0]["mean"] == pytest.approx(content[1]["mean"])


@pytest.mark.parametrize(
    ("method", "lie", "why"),
    [
        ({"method": "AFL"}, number("loss", 1e30), "a loss of 1e+30, above 110"),
        ({"method": "DRFA"}, number("loss", 1e30, "evaluate"), "loss: a loss of 1e+30, above 100"),
        ({"method": "WAFL", "radius": 0.3}, number("cost", 51.0), "a cost of 51, above caps.cost = 50"),
    ],
)
def test_a_loss_or_cost_that_cannot_be_is_left_out_with_its_reason(
    method: dict[str, Any], lie: Any, why: str, stage: Stage
) -> None:
    train(stage, experiment(method, caps={"loss": 20.0, "cost": 50.0} if "caps" in why else {}), lie)
    rows = read_lines(StudyFolder(stage.study).metrics)
    assert [5, why] in rows[0]["excluded"]
    assert all(row["excluded"] for row in rows if row["method"] != "drfa"), "in every round"
    assert all(math.isfinite(row["loss"]) for row in rows)


@pytest.mark.parametrize("tolerance", [None, {"clip": math.inf, "diverged": 3.0}], ids=["by default", "switched off"])
def test_a_long_update_is_shortened_by_default_and_the_log_names_the_client(
    tolerance: Any, stage: Stage, logged: Logged
) -> None:
    """It goes the wrong way, and thirty times as far."""
    queries: list[Any] = []

    def lie(reply: RecordDict) -> RecordDict:
        start = fakes.tensor(queries[-1], "params", "params")
        return fakes.spoiled(reply, "vectors", "params", lambda end: start - 30.0 * (end - start))

    schedule = {**BASE["schedule"], "rounds": 8}
    about = experiment(schedule=schedule, **({} if tolerance is None else {"tolerance": tolerance}))
    grid = stage.grid(about, [*HONEST, ["c05"]])
    node = grid.hosts[-1].node
    answer = node.answer
    node.answer = lambda query, *rest: queries.append(fakes.carried(fakes.encoded(query))) or answer(query, *rest)
    grid.hosts[-1].fate = lambda kind, _: lie if kind == "train" else None
    if tolerance is None:
        stage.train(about, grid)
        rows = read_lines(StudyFolder(stage.study).metrics)
        assert all([client for client, _ in row["shortened"]] == [5] for row in rows)
        assert sum("c05 shortened to" in line for line in logged()) == 1, "a warning the first time only"
    else:
        with pytest.raises(
            DivergedError, match=r"has risen since round 0.*The longest update came from c05,  .* times"
        ):
            stage.train(about, grid)


# -- Shares -----------------------------------------------------------------------------------------------------

EACH = [[f"c{number:02d}"] for number in range(6)]
BY_DEFAULT = {"client_share": "double", "clients_per_node": 1}
SIX = {**BASE["flower"], "nodes": 6}


def test_a_claim_of_a_million_examples_counts_for_twice_an_equal_share_and_is_named(
    stage: Stage, logged: Logged
) -> None:
    train(stage, experiment(caps=BY_DEFAULT, flower=SIX), hello(sizes=[10**6]), EACH)
    rows = read_lines(StudyFolder(stage.study).metrics)
    assert all([5, "a weight held at 0.333"] in row["limited"] for row in rows)
    weights = load_run(stage.study / "fedavg").client_weights
    assert weights.max() == pytest.approx(1 / 3)
    assert float(weights[0] / weights[1]) == pytest.approx(3 / 8), "the others keep their proportions"
    assert roster(stage)["capped"] == ["c05"]
    assert any("c05 claims a larger share of all examples than a client may have" in line for line in logged())


C05 = sha256(b"key 38").hexdigest()
"""The fingerprint of the key of the node that holds c05."""


@pytest.mark.parametrize("client", [C05, f"{C05}/c05"])
def test_a_size_that_the_operator_declares_counts_whatever_is_claimed(client: str, stage: Stage) -> None:
    caps = {**BY_DEFAULT, "sizes": {client: 300}}
    if "/" in client:
        caps["clients_per_node"] = 2
    about = experiment(caps=caps, flower=SIX)
    grid = keyed(stage.grid(about, EACH))
    grid.hosts[-1].fate = hello(sizes=[10**6])
    stage.train(about, grid)
    weights = load_run(stage.study / "fedavg").client_weights
    assert float(weights[5]) == pytest.approx(300 / 332)
    assert roster(stage)["capped"] == []


def test_a_node_that_takes_the_name_of_a_large_client_does_not_get_its_weight(stage: Stage) -> None:
    """It connects first, and claims a million examples."""
    about = experiment(caps={**BY_DEFAULT, "sizes": {C05: 300}}, flower=SIX)
    grid = keyed(stage.grid(about, EACH))
    grid.hosts[-1] = thief(stage, about, ["c05"])
    grid.hosts[-1].fate = hello(sizes=[10**6])
    stage.train(about, grid)
    assert roster(stage)["capped"] == ["c05"]
    assert load_run(stage.study / "fedavg").client_weights.max() == pytest.approx(1 / 3)


def test_a_name_that_reads_like_a_key_declares_no_size() -> None:
    caps = Caps(sizes={C05: 300, f"{C05}/c05": 300, "north": 20})
    assert caps.size_of("c05", C05) == caps.size_of("any", C05) == 300
    assert caps.size_of("north", "") == caps.size_of("north", "f" * 64) == 20
    for name in ("c05", C05, f"{C05}/c05", f"{C05}/a\nb"):
        assert caps.size_of(name, "f" * 64) is caps.size_of(name, "") is None


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("north", r"'north', but .*sizes = \{\"FINGERPRINT\" = 5000\}, or \"FINGERPRINT/north\""),
        (C05.upper(), "any node may call a client so"),
        (C05, f'write one line for each, such as "{C05}/NAME" = 5000'),
    ],
)
def test_sizes_on_nodes_belong_to_one_client_of_a_key(size: str, message: str, stage: Stage) -> None:
    about = experiment(caps={"sizes": {size: 5000}, "clients_per_node": 2}, flower=SIX)
    with pytest.raises(ConfigError, match=message):
        fakes.flat(about)
    grid = stage.grid(experiment(flower=SIX), EACH)
    with pytest.raises(ConfigError, match=message):  # a Flower run may change the caps of its app
        Census(Post(grid), Flower(), True, caps=Caps(sizes={size: 5000}, clients_per_node=2))
    assert grid.seen == []


def test_where_nodes_have_no_keys_of_their_own_sizes_go_by_name(stage: Stage) -> None:
    flower = {**SIX, "names_by_key": False}
    train(stage, experiment(caps={**BY_DEFAULT, "sizes": {"c05": 300}}, flower=flower), hello(sizes=[10**6]), EACH)
    assert float(load_run(stage.study / "fedavg").client_weights[5]) == pytest.approx(300 / 332)


def test_both_engines_limit_the_same_clients_in_the_same_way(stage: Stage) -> None:
    methods = [
        {"method": "AFL", "local_steps": 1, "weights_step": 5.0},
        {"method": "CVaR", "alpha": 0.8},
        {"method": "DRFA", "weights_step": 5.0},
        {"method": "FedAvg", "server": {"kind": "geometric_median"}},
        {"method": "WAFL", "radius": 0.3},
        {"method": "WAFL", "name": "wafl-shaped", "cost_matrix": "clients"},
    ]
    caps = {"client_share": 0.22, "clients_per_node": 1}
    about = {**experiment(caps=caps, tolerance={"clip": 1.1}, flower=SIX), "methods": methods}
    train(stage, about, None, EACH)
    other = replace(stage, root=stage.root / "here")
    other.root.mkdir()
    other.embedded(about, "study")
    assert_same(stage, other)
    mine, theirs = (read_lines(StudyFolder(each.study).metrics) for each in (stage, other))
    limited = [(row["method"], row.get("limited"), row.get("shortened")) for row in mine]
    assert limited == [(row["method"], row.get("limited"), row.get("shortened")) for row in theirs]
    text = " ".join(what for _, each, _ in limited for _, what in each or ())
    assert all(f"a {what} " in text for what in ("weight", "cost")), text


def test_a_node_speaks_for_one_client_unless_the_operator_writes_its_key(stage: Stage, logged: Logged) -> None:
    layout = [*EACH[:4], ["c04", "c05"]]
    key = sha256(b"key 31").hexdigest()
    refused = experiment(caps=BY_DEFAULT, flower={**SIX, "nodes": 5})
    stage.train(refused, keyed(stage.grid(refused, layout)))
    assert roster(stage)["names"] == ["c00", "c01", "c02", "c03"]
    line = f'write caps.node_clients = {{"{key}" = 2}}'
    assert any(
        "node 31 takes no part: it claims 2 clients, each with a vote" in each and line in each for each in logged()
    )
    allowed = experiment(caps={**BY_DEFAULT, "node_clients": {key: 2}}, flower={**SIX, "nodes": 5})
    other = replace(stage, root=stage.root / "allowed")
    other.train(allowed, keyed(other.grid(allowed, layout)))
    assert len(roster(other)["names"]) == 6
    assert any("node 31 holds 2 clients, and its operator speaks for all of them" in line for line in logged())


def test_a_key_does_not_collect_clients_by_coming_back_under_other_names(stage: Stage, logged: Logged) -> None:
    """Neither as a second node, nor after the first is gone."""
    about = experiment(caps=BY_DEFAULT, flower={**SIX, "nodes": 3})
    grid = keyed(stage.grid(about, EACH[:3]))
    again = thief(stage, about, ["x00"])
    again.key = grid.hosts[2].key

    def before(kind: str, at: int | None) -> None:
        if at == 0 and again not in grid.hosts:
            grid.hosts.append(again)
            grid.hosts[2].here = False

    grid.before_push = before
    stage.train({**about, "tolerance": {"min_replies": 0.2}}, grid)
    assert roster(stage)["names"] == ["c00", "c01", "c02"]
    assert any("node 1 takes no part: it claims 2 clients" in line for line in logged())


def test_a_spread_of_a_million_moves_the_radii_that_are_tried_a_little_and_is_named(
    stage: Stage, logged: Logged
) -> None:
    def lie(reply: RecordDict) -> RecordDict:
        return fakes.spoiled(reply, "numbers", "squares", lambda squares: squares + 1e6)

    about = experiment({"method": "WAFL", "radius": "auto"}, caps=BY_DEFAULT, flower=SIX)
    radii: list[float] = []
    for index, sent in enumerate((None, lie)):
        here = replace(stage, root=stage.root / str(index))
        train(here, about, lambda kind, _, sent=sent: sent if kind == "query.spread" else None, EACH)
        chosen = StudyFolder(here.study).read_results()["methods"]["WAFL"]["chosen"]["2"]
        radii.append(chosen["tried"][-1]["radius"])
    assert radii[0] < radii[1] < 2.0 * radii[0]
    assert [line for line in logged() if "spread" in line] == [
        "c05 claims a spread far above the others', or too many examples for it: it counts for less"
    ]


# -- Names ------------------------------------------------------------------------------------------------------


def keyed(grid: Grid) -> Grid:
    for host in grid.hosts:
        host.key = b"key %d" % host.number
    return grid


def thief(stage: Stage, about: dict[str, Any], names: list[str]) -> Host:
    """A node of another key that claims names of others; its updates would ruin the model."""
    data = fakes.write(stage.root / "thief", dict.fromkeys(names, stage.clients["c05"]))
    node = Node.of({"data": str(data), "state": str(stage.root / "thief-state"), **fakes.ADMITTED}, fakes.flat(about))
    ruin = lambda reply: fakes.spoiled(reply, "vectors", "params", lambda x: -5.0 * x)  # noqa: E731
    return Host(1, node, lambda kind, _: ruin if kind == "train" else None, key=b"another key")


@pytest.mark.parametrize("gone", [False, True], ids=["its node is here", "its node is gone"])
def test_nobody_takes_another_nodes_names(gone: bool, honest: Stage, stage: Stage, logged: Logged) -> None:
    """A late node that claims eight of ten names would decide the model."""
    about = experiment(flower={**BASE["flower"], "nodes": 2}, tolerance={"min_replies": 0.2})
    grid = keyed(stage.grid(about, HONEST))
    stolen = thief(stage, about, ["c02", "c03", "c04"])

    def before(kind: str, at: int | None) -> None:
        if at == 0 and stolen not in grid.hosts:
            grid.hosts.append(stolen)
        grid.hosts[1].here = not (gone and at == 1)

    grid.before_push = before
    stage.train(about, grid)
    assert all(seen.kind == "query.hello" for seen in grid.seen if seen.node == 1)
    assert any("c02, c03, c04 belong to the key of another node" in line for line in logged())
    if not gone:
        assert_same(stage, honest)
    owners = roster(stage)["owners"]
    assert owners.keys() == {"c00", "c01", "c02", "c03", "c04"}
    assert len(set(owners.values())) == 2


def test_a_resumed_study_knows_whose_names_they_are(honest: Stage, stage: Stage) -> None:
    """The thief connects before the node that it robs; a node may rejoin under another number with its own key."""
    about = experiment(flower={**BASE["flower"], "nodes": 2})
    grid = keyed(stage.grid(about, HONEST))

    def stop(kind: str, at: int | None) -> None:
        if at == 1:
            raise KeyboardInterrupt

    grid.before_push = stop
    with pytest.raises(KeyboardInterrupt):
        stage.train(about, grid)
    again = keyed(stage.grid(about, HONEST))
    again.hosts[1].number = 77
    for host in again.hosts:
        host.fate = lambda kind, _: 1.0 if kind == "query.hello" else None
    again.hosts.append(thief(stage, about, ["c02", "c03", "c04"]))
    stage.train(about, again)
    assert_same(stage, honest)


def test_without_names_by_key_a_node_takes_over_when_another_is_gone(stage: Stage) -> None:
    """As in a trial without keys, where a restarted node has a new one."""
    about = experiment(flower={**BASE["flower"], "nodes": 2, "names_by_key": False})
    grid = keyed(stage.grid(about, HONEST))
    data = {"data": str(stage.root / "node-1"), "state": str(stage.root / "state-1"), **fakes.ADMITTED}
    restarted = Host(1, Node.of(data, fakes.flat(about)), key=b"a new key")

    def before(kind: str, at: int | None) -> None:
        if at == 0 and restarted not in grid.hosts:
            grid.hosts.append(restarted)
        if at == 1:
            grid.hosts[1].here = False

    grid.before_push = before
    stage.train(about, grid)
    rounds = {seen.round for seen in grid.seen if seen.node == 1 and seen.kind == "train"}
    assert rounds == {1, 2}, "round 1 is tried again without the node that is gone"
    assert json.loads((stage.study / "metrics.jsonl").read_text().splitlines()[-1])["excluded"] == []


def test_no_node_counts_for_more_of_the_tests_than_of_the_training(stage: Stage, logged: Logged) -> None:
    """A claim of a million wrong tests would make the report say 0.0 for a model that is right everywhere else."""

    def lie(reply: RecordDict) -> RecordDict:
        claims = {**reply["reply"], "sizes": [10**6], "right": [0.0, 0.0]}
        return RecordDict({**reply, "reply": ConfigRecord(claims)})

    def perfect(reply: RecordDict) -> RecordDict:
        return RecordDict({**reply, "reply": ConfigRecord({**reply["reply"], "right": [1.0, 1.0]})})

    means = list[float]()
    for share in (1.0, "double"):
        about = experiment(caps={"client_share": share}, flower={**BASE["flower"], "nodes": 6})
        layout = [[f"c{client:02d}"] for client in range(len(SIZES))]
        grid = stage.grid(about, layout)
        for host, told in zip(grid.hosts, [*[perfect] * 5, lie], strict=True):
            host.fate = lambda kind, _, told=told: told if kind == "evaluate.test" else None
        folder = stage.root / f"share-{share}"
        fakes.train(grid, about, folder)
        means.append(StudyFolder(folder).read_results()["methods"]["FedAvg"]["clean"]["mean"])
    assert means[0] < 0.01
    assert means[1] == pytest.approx(100 * 2 / 3), "one node of six counts for a third at most"
    assert any("c05 claims a larger share of all tests than a node may have" in line for line in logged())


@pytest.mark.parametrize("name", ["", "a" * 201, "c05\n", "c05\x1b[2J", "\u202ec05"])
def test_a_name_that_cannot_be_printed_or_is_too_long_is_refused(name: str) -> None:
    def greeting(client: str) -> RecordDict:
        return Hello((client,), None, None, (), (4,), 3, 3, "mm", None).encode()

    assert Hello.decode(greeting("a" * 200), False).names == ("a" * 200,)
    with pytest.raises(WireError, match="1 to 200 printable characters"):
        Hello.decode(greeting(name), False)


def test_every_run_prints_what_is_in_effect(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("wafl.flower.server.find_clients.log", lambda _, text, *parts: lines.append(text % parts))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType]
    train(stage, experiment({"method": "AFL", "learning_rate": [0.1, 0.2]}), lambda *_: None)
    (schedule,) = [line for line in lines if line.startswith("schedule of afl: ")]
    for setting in ("rounds = 3", "local_steps = 1", "learning_rate = [0.1, 0.2]", "seed = [2]", "batch_size = 2"):
        assert setting in schedule
    assert any(line.startswith("caps: ") and "client_share = 1.0" in line for line in lines)
    assert any(line.startswith("tolerance: ") and "clip = 2.5" in line for line in lines)
    assert "privacy: none" in lines
