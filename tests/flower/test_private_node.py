"""Nodes that add noise themselves: what they answer, what they spend, and what a curious server learns."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity

from tests.flower.conftest import Logged, Stage
from tests.oracles import flower_fakes as fakes
from tests.oracles.curious import SCALARS, Curious
from wafl.base.errors import ConfigError
from wafl.base.files import sealed, write_whole
from wafl.data.federation import Federation
from wafl.flower.node.hello import Hello
from wafl.flower.node.keeper import KEEPER, keep
from wafl.flower.node.ledger import Ledger
from wafl.flower.node.private import ANSWERED
from wafl.flower.node.queries import HANDLERS, answer
from wafl.flower.node.refusals import check_refusal
from wafl.flower.node.work import Node
from wafl.flower.ops.supernode import run_node
from wafl.flower.wire.values import NodeQuery, WireError, config_only, encode_query
from wafl.parts.messages import Query
from wafl.train.privacy import noise
from wafl.train.privacy.accountant import delta_of, epsilon_of
from wafl.train.privacy.records import RecordPrivacy

FEATURES, SIZE = 8, 40
SCHEDULE = {"rounds": 9, "local_steps": 1, "batch_size": 32, "learning_rate": 0.5}
CLIENTS = fakes.make_clients((SIZE, 5, 60), shape=(FEATURES,))
WORDS = "epsilon=4 delta=1e-5 clip_norm=10 steps=20"
PRIVACY = RecordPrivacy(4.0, 1e-5, 10.0, 20)
MakeNode = Callable[..., Node]


def app(*methods: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The run config of an app that declares all tasks."""
    schedule = {**SCHEDULE, **sections.pop("schedule", {})}
    flower, data = {"tasks": ["train", "certify", "mixture"]}, sections.pop("data", {"num_classes": 3})
    return fakes.flat({
        "methods": [*methods] or [{"method": "FedAvg"}], "schedule": schedule, "flower": flower, "data": data,
        "questions": {"radii": [0.0], "minimum": 20}, **sections,
    })  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """A function that starts a private node with its own data, for an app."""
    data = fakes.write(tmp_path / "data", CLIENTS)

    def make(run_config: dict[str, Any] | None = None, privacy: str = WORDS, **config: Any) -> Node:
        node_config = {"data": str(data), "state": str(tmp_path / "state"), "privacy": privacy, **config}
        return Node.of(node_config, run_config or app())

    return make


def ask(node: Node, kind: str, content: RecordDict) -> RecordDict:
    reply = fakes.carried(answer(kind, lambda: node, fakes.carried(content)))
    check_refusal(reply)
    return reply


def train(entry: str = "fedavg", runs: int = 1, scalars: dict[str, float] | None = None, **about: Any) -> RecordDict:
    ones, params = torch.ones(1, dtype=torch.float64), torch.zeros(3 * FEATURES + 3)
    queries = tuple(Query("train", 0, seed, (0,), ones, params, scalars or SCALARS, **about) for seed in range(runs))
    return encode_query(NodeQuery(entry, tuple(range(runs)), queries, {0: "c00"}, 3, "training"))


def spent(ledger: Ledger) -> list[float]:
    """What each file shows of what the client has spent, in steps; 0 for a file that is missing."""
    shown = [json.loads(file.read_bytes())["spent"] if file.exists() else {} for file in ledger.files]
    return [each.get("c00", 0.0) / PRIVACY.cost for each in shown]


# -- What it answers -------------------------------------------------------------------------------------------------


def test_it_answers_nothing_that_has_no_noise(make_node: MakeNode) -> None:
    node = make_node()
    for kind in {*HANDLERS} - {*ANSWERED}:
        with pytest.raises(WireError, match="this node is private: it trains with noise, and sends no losses"):
            ask(node, kind, RecordDict())
    reply = ask(node, "train", train())
    assert [reply["numbers"][name] for name in ("loss", "cost")] == [[0.0], [0.0]]  # type: ignore[index]


def test_its_greeting_depends_on_no_record(make_node: MakeNode) -> None:
    node = make_node()
    hello = Hello.decode(ask(node, "query.hello", config_only("query", sizes=True)), True)
    assert (hello.names, hello.sizes, hello.tested) == (("c00", "c02"), (SIZE, 60), ())
    assert hello.privacy == "epsilon 4 and delta 1e-05 for each example"
    with pytest.raises(WireError, match=r"does not count its classes: write num_classes into \[data\]"):
        make_node(app(data={}))


@pytest.mark.parametrize(
    ("method", "about", "why"),
    [
        ({"method": "AFL"}, {}, "afl weights its clients by their losses"),
        ({"method": "DRFA"}, {"iterates": {"snapshot": 1}}, "drfa asks for iterates"),
        ({"method": "SCAFFOLD"}, {"sends": ("control",)}, r"scaffold has clients send more .*\(control\)"),
        ({"method": "FedSAM"}, {"scalars": {"rho": 0.05}}, "takes more than one gradient"),
        ({"method": "FedRobust"}, {"scalars": {"objective": True}}, "keep numbers between rounds"),
        ({"method": "WAFL", "radius": 0.2}, {"scalars": {"gamma": 3.0, "radius": 0.1}}, "learns gamma"),
    ],
    ids=lambda value: value["method"] if isinstance(value, dict) and "method" in value else "",
)
def test_methods_whose_clients_send_more_than_noisy_models_are_refused(
    method: dict[str, Any], about: dict[str, Any], why: str, make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(app(method))
    about = dict(about)
    (entry, (spec,)), like = next(iter(node.specs.items())), torch.zeros(3 * FEATURES + 3)
    objective, more = spec.method.objective, dict(about.pop("scalars", {}))
    if more.pop("objective", None) and objective is not None:
        more = objective.scalars()
    vectors = spec.method.local.initial_vectors(like)
    with pytest.raises(WireError, match=f"this node is private: .*{why}"):
        ask(node, "train", train(entry, scalars={**SCALARS, **more}, vectors=vectors, **about))
    assert spent(Ledger(tmp_path / "state")) == [0.0, 0.0]


def test_wafl_and_a_momentum_train(make_node: MakeNode) -> None:
    config = app({"method": "WAFL", "gamma": 2.0}, {"method": "FedProx"}, schedule={"momentum": 0.5, "clip_norm": 1.0})
    usual = {**SCALARS, "momentum": 0.5, "clip_norm": 1.0}
    ask(make_node(config), "train", train("wafl", scalars={**usual, "gamma": 2.0}))
    ask(make_node(config), "train", train("fedprox", scalars={**usual, "mu": 0.1}))


def test_a_study_trains_with_private_and_other_nodes(stage: Stage, logged: Logged) -> None:
    experiment: dict[str, Any] = {
        "name": "study",
        "methods": [{"method": "FedAvg"}],
        "schedule": {"rounds": 2, "local_epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        "data": {"num_classes": 3},
        "attack": {"kind": "none"},
        "flower": {"nodes": 2, "wait": 5.0},
    }
    stage.clients = fakes.make_clients((20, 24, 20))
    grid = stage.grid(experiment, [["c00", "c01"], ["c02"]])
    host = grid.hosts[0]
    config = {"data": str(stage.root / "node-0"), "state": str(stage.root / "state"), "privacy": WORDS}
    host.node = Node.of(config, fakes.flat(experiment))
    stage.train(experiment, grid)
    assert any("is private (epsilon 4 and delta 1e-05 for each example)" in line for line in logged())
    kinds = {seen.kind for seen in grid.seen if seen.node == host.number}
    assert kinds == {"query.hello", "train"}, "it is not tested"
    ledger = json.loads((stage.root / "state" / "privacy.json").read_bytes())["spent"]
    steps = {name: value / PRIVACY.cost for name, value in ledger.items()}
    assert steps == pytest.approx({"c00": 6.0, "c01": 6.0}), "two rounds of three batches each"


# -- What a curious server learns ------------------------------------------------------------------------------------


def error(record: torch.Tensor) -> float:
    """How far a record is from the nearest example of the client, at its worst number."""
    return float((torch.tensor(CLIENTS["c00"]["x"]) - record).abs().amax(1).min())


def test_crafted_parameters_recover_a_record_only_without_the_noise(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The attack of tests/flower/test_curious.py; it ends with an error of many times a record, or with the budget."""
    with monkeypatch.context() as without:
        without.setattr(noise, "gaussian", lambda count: torch.zeros(count, dtype=torch.float64))
        liberal = make_node(privacy="epsilon=1e6 delta=1e-5 clip_norm=10 steps=100", state=str(tmp_path / "elsewhere"))
        assert error(Curious(liberal, "c00", FEATURES).by_crafted_parameters(SIZE)) < 1e-3
    server, refusal = Curious(make_node(), "c00", FEATURES), ""
    try:
        record = server.by_crafted_parameters(SIZE)
    except WireError as ended:
        record, refusal = None, str(ended)
    assert "has privacy left for 0 local steps" in refusal if record is None else error(record) > 1.0
    assert server.messages <= 21


# -- What is spent ---------------------------------------------------------------------------------------------------


def test_steps_of_all_rounds_runs_and_apps_are_counted(make_node: MakeNode, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state")
    ask(make_node(), "train", train())
    assert spent(ledger) == pytest.approx([1.0, 1.0])
    ask(make_node(app(seeds=[0, 1], schedule={"local_steps": 3})), "train", train(runs=2))
    assert spent(ledger) == pytest.approx([7.0, 7.0])
    ask(make_node(app({"method": "FedProx"}, schedule={"local_steps": 13})), "train", train(
        "fedprox", scalars={**SCALARS, "mu": 0.1}
    ))  # fmt: skip
    with pytest.raises(WireError, match=r"c00 has privacy left for 0 local steps in all runs, and was asked for 1"):
        ask(make_node(), "train", train())
    assert spent(ledger) == pytest.approx([20.0, 20.0]), "what is refused is not counted"
    multiplier = PRIVACY.deviation / (2.0 * PRIVACY.clip_norm)
    assert epsilon_of(1e-5, multiplier, 20) == pytest.approx(4.0)


def test_a_budget_with_other_steps_goes_on_where_the_last_one_was(make_node: MakeNode) -> None:
    """Half of the budget in steps of one kind, and half in steps with half the noise: four times fewer."""
    ask(make_node(app(schedule={"local_steps": 10})), "train", train())
    coarse = make_node(privacy=WORDS.replace("steps=20", "steps=5"))
    ask(coarse, "train", train())
    ask(coarse, "train", train())
    with pytest.raises(WireError, match="has privacy left for 0 local steps"):
        ask(coarse, "train", train())
    ask(make_node(privacy=WORDS.replace("epsilon=4", "epsilon=8")), "train", train())


def test_a_step_that_fails_stays_counted(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("wafl.train.privacy.records.noisy", lambda *_: 1 / 0)
    with pytest.raises(WireError, match="its work ended with an error"):
        ask(make_node(), "train", train())
    assert spent(Ledger(tmp_path / "state")) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("what", ["restored", "removed"])
def test_an_old_file_brings_no_privacy_back(place: int, what: str, make_node: MakeNode, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state")
    ask(make_node(), "train", train())
    old = ledger.files[place].read_bytes()
    ask(make_node(app(schedule={"local_steps": 19})), "train", train())
    ledger.files[place].write_bytes(old) if what == "restored" else ledger.files[place].unlink()
    with pytest.raises(WireError, match="has privacy left for 0 local steps"):
        ask(make_node(), "train", train())


def test_old_files_bring_no_privacy_back_while_the_node_runs(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The processes of single messages ask the one that lives as long as the node; each knows nothing by itself."""
    monkeypatch.setenv(KEEPER, "")  # set again below, and removed after the test
    with tempfile.TemporaryDirectory() as short:
        keep(ledger := Ledger(tmp_path / "state"), PRIVACY, Path(short) / "ledger")
        ask(make_node(), "train", train())
        assert spent(ledger) == pytest.approx([1.0, 1.0])
        old = [file.read_bytes() for file in ledger.files]
        ask(make_node(app(schedule={"local_steps": 5})), "train", train())
        for file, content in zip(ledger.files, old, strict=True):
            file.write_bytes(content)
        ask(make_node(), "train", train())
        assert spent(ledger) == pytest.approx([7.0, 7.0])
        for file in ledger.files:
            file.unlink()
        with pytest.raises(WireError, match="c00 has privacy left for 13 local steps in all runs"):
            ask(make_node(app(schedule={"local_steps": 14})), "train", train())
        ask(make_node(app(schedule={"local_steps": 13})), "train", train())
        ledger.files[0].write_text("{")
        with pytest.raises(WireError, match="its work ended with an error"):
            ask(make_node(), "train", train())
    with pytest.raises(WireError, match="its work ended with an error"):  # no process is left to ask
        ask(make_node(), "train", train())


def test_files_that_are_removed_while_no_process_counts_bring_privacy_back_and_that_is_a_documented_no(
    make_node: MakeNode, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "state")
    ask(make_node(app(schedule={"local_steps": 5})), "train", train())
    for file in ledger.files:
        file.unlink()
    ask(make_node(), "train", train())
    assert spent(ledger) == pytest.approx([1.0, 1.0])


def test_steps_of_several_processes_add_up(make_node: MakeNode, tmp_path: Path) -> None:
    """Each process of a task has a ledger, and takes its steps while others take theirs."""
    ledgers = [Ledger(tmp_path / "state") for _ in range(4)]

    def spend(ledger: Ledger) -> int:
        taken = 0
        with suppress(WireError):
            for _ in range(10):
                ledger.spend({"c00": 1}, PRIVACY)
                taken += 1
        return taken

    with ThreadPoolExecutor(len(ledgers)) as pool:
        assert sum(pool.map(spend, ledgers)) == PRIVACY.steps
    assert spent(ledgers[0]) == pytest.approx([20.0, 20.0])
    with pytest.raises(WireError, match="has privacy left for 0 local steps"):
        ask(make_node(), "train", train())


@pytest.mark.parametrize("written", [0, 1])
def test_a_kill_between_the_two_files_forgets_no_step(
    written: int, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No step is taken before both files are written; whichever is written counts."""
    calls = list[Path]()

    def killed(path: Path, content: bytes, mode: int) -> None:
        if len(calls) == written:
            raise KeyboardInterrupt
        calls.append(path)
        write_whole(path, content, mode)

    ask(make_node(), "train", train())
    with monkeypatch.context() as until:
        until.setattr("wafl.flower.node.ledger.write_whole", killed)
        until.setattr("wafl.train.privacy.records.noisy", lambda *_: pytest.fail("a step was taken"))
        with pytest.raises(KeyboardInterrupt):
            ask(make_node(), "train", train())
    ask(make_node(), "train", train())
    assert spent(Ledger(tmp_path / "state")) == pytest.approx([2.0 + written] * 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_count_that_is_no_count_is_damage(value: float, make_node: MakeNode, tmp_path: Path) -> None:
    """NaN is not above any budget."""
    ask(make_node(), "train", train())
    (tmp_path / "state" / "privacy.json").write_bytes(sealed({"spent": {"c00": value}}))
    with pytest.raises(WireError, match="its work ended with an error"):
        ask(make_node(), "train", train())


def test_a_damaged_file_is_not_begun_again(make_node: MakeNode, tmp_path: Path) -> None:
    ask(make_node(), "train", train())
    file = tmp_path / "state" / "privacy.json"
    file.write_text(file.read_text().replace("0.0", "0.00"))
    with pytest.raises(WireError, match="its work ended with an error"):
        ask(make_node(), "train", train())
    with pytest.raises(RuntimeError, match=r"privacy\.json is damaged"):
        Ledger(tmp_path / "state").spend({"c00": 1}, PRIVACY)


def test_a_second_copy_that_cannot_be_written_is_logged(
    make_node: MakeNode, home: Path, logged: Logged, tmp_path: Path
) -> None:
    home.write_text("no folder")
    ask(make_node(), "train", train())
    assert any("has no second copy" in line and "XDG_STATE_HOME" in line for line in logged())
    assert json.loads((tmp_path / "state" / "privacy.json").read_bytes())["spent"]["c00"] > 0.0


# -- What the operator sets ------------------------------------------------------------------------------------------


def test_a_unit_is_a_patient_if_the_operator_names_them(tmp_path: Path, make_node: MakeNode) -> None:
    patients = np.arange(SIZE) // 2
    folder = fakes.write(tmp_path / "grouped", {"c00": {**CLIENTS["c00"], "patient": patients * 100}})
    node = make_node(privacy=f"{WORDS} group=patient", data=str(folder))
    hello = Hello.decode(ask(node, "query.hello", config_only("query", sizes=True)), True)
    assert (hello.sizes, hello.privacy) == ((20,), "epsilon 4 and delta 1e-05 for each patient")
    assert node.site.units["c00"].tolist() == patients.tolist()
    ask(node, "train", train())
    few = make_node(privacy=f"{WORDS} group=patient", data=str(folder), **{"min-examples": 21})
    assert few.site.small == {"c00": 20}
    with pytest.raises(ConfigError, match=r"c00.npz must have an array 'ward' with one value per row of x"):
        make_node(privacy=f"{WORDS} group=ward", data=str(folder))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("epsilon=4", r"must set epsilon, delta, clip_norm, steps, and may set group, as in 'epsilon=4 "),
        (f"{WORDS} noise=1", "must set epsilon"),
        (WORDS.replace("epsilon=4", "epsilon=-1"), r"epsilon=-1.0 must be positive"),
        (WORDS.replace("delta=1e-5", "delta=1"), r"delta=1.0 must lie in \(0, 1\)"),
        (WORDS.replace("delta=1e-5", "delta=0.017"), r"delta=0.017 must be well below 0.0166667, one over the units"),
        (WORDS.replace("steps=20", "steps=0"), "steps=0 must be at least 1"),
        (WORDS.replace("clip_norm=10", "clip_norm=much"), "could not convert"),
    ],
)
def test_what_the_operator_sets_is_checked(words: str, why: str, make_node: MakeNode) -> None:
    with pytest.raises(ConfigError, match=why):
        make_node(privacy=words)


def test_privacy_is_the_operators_alone(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAFL_PRIVACY", WORDS.replace("epsilon=4", "epsilon=2"))
    (from_environment, from_config) = make_node(privacy=""), make_node()
    assert [each.private and each.private.privacy.epsilon for each in (from_environment, from_config)] == [2.0, 4.0]
    with pytest.raises(ConfigError):
        make_node({**app(), "privacy": "epsilon=100"})


def test_the_command_checks_privacy_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAFL_PRIVACY", "")
    with pytest.raises(ConfigError, match="must set epsilon, delta, clip_norm, steps"):
        run_node(["--insecure"], ["0" * 64], limits={"privacy": "epsilon=4"})


def test_data_that_are_standardized_by_themselves_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(0, 256, size=(SIZE, 4, 4)).astype(np.uint8)
    federation = Federation.from_arrays(
        [(images, np.arange(SIZE) % 3)], test_fraction=0.0, names=["c00"], preprocess="zscore"
    )
    monkeypatch.setattr(fakes, "EVERYONE", [federation])
    config = {"data": "tests.oracles.flower_fakes:everyone", "state": str(tmp_path), "privacy": WORDS}
    with pytest.raises(ConfigError, match="standardized by their own statistics"):
        Node.of(config, app())


# -- Why Flower's mod is no substitute -------------------------------------------------------------------------------


def local_dp(epsilon: float) -> np.ndarray[Any, Any]:
    """Return the noise that Flower's mod adds to an update of almost nothing; a loss gets none."""
    loss = MetricRecord({"loss": 0.125})

    def trained(message: Message, _: Context) -> Message:
        moved = RecordDict({"params": ArrayRecord([np.full(20_000, 1e-9)]), "numbers": loss})
        return Message(moved, reply_to=message)

    message = Message(RecordDict({"params": ArrayRecord([np.zeros(20_000)])}), 5, "train")
    message.metadata.__dict__["_message_id"] = "one"
    reply = LocalDpMod(1.0, 2.0, epsilon, 1e-5)(message, Context(1, 5, {}, RecordDict(), {}), trained)
    assert reply.content.metric_records["numbers"] == loss
    return reply.content.array_records["params"].to_numpy_ndarrays()[0]


def test_flowers_local_mod_neither_composes_nor_holds_for_a_large_epsilon_nor_hides_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    for epsilon in (0.5, 10.0):
        np.random.seed(3)
        noises = [local_dp(epsilon) for _ in range(2)]
        formula = 2.0 * np.sqrt(2.0 * np.log(1.25e5)) / epsilon
        assert all(each.std() == pytest.approx(formula, rel=0.03) for each in noises), (
            "each message costs all of epsilon"
        )
        multiplier = formula / 2.0
        assert (delta_of(epsilon, multiplier, 1) <= 1e-5) == (epsilon < 1.0), "the formula is false for 10"
        assert delta_of(epsilon, multiplier, 20) > 1e-5, "twenty messages are not counted"
        np.random.seed(3)
        np.testing.assert_array_equal(local_dp(epsilon), noises[0], "the seed shows the noise")
