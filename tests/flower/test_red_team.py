"""Attacks on a server and its nodes that no other file tries: docs/security.md has the table."""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message_type import MessageType
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from torch import Tensor

from tests.flower.conftest import Stage
from tests.oracles import flower_fakes as fakes
from tests.oracles.curious import SCALARS, STEEP
from wafl.flower.node import queries
from wafl.flower.node.hello import Hello
from wafl.flower.node.next_client import NextClientQuery
from wafl.flower.node.queries import answer
from wafl.flower.node.refusals import check_refusal
from wafl.flower.node.work import Node
from wafl.flower.server.census import common_labels
from wafl.flower.wire.values import NodeQuery, WireError, decode_replies, encode_query
from wafl.parts.messages import Query
from wafl.receipts.questions import Questions

FEATURES, SIZE = 4, 20
CLIENTS = fakes.make_clients((SIZE, SIZE), shape=(FEATURES,))
CLIENTS["c00"]["y_test"][:] = 2
SCHEDULE = {"rounds": 3, "local_steps": 1, "batch_size": 16, "learning_rate": 0.5}

STUDY = {
    "name": "study",
    "seeds": [2],
    "data": {"source": "tests.oracles.flower_fakes:everyone"},
    "schedule": {**SCHEDULE, "batch_size": 2},
    "attack": {"kind": "none"},
    "methods": [{"method": "FedAvg"}],
    "flower": {"nodes": 2, "wait": 5.0, "round_timeout": 20.0},
}


def app(**sections: Any) -> dict[str, Any]:
    return fakes.flat({"methods": [{"method": "FedAvg"}], "schedule": SCHEDULE, **sections})


@pytest.fixture
def make_node(tmp_path: Path) -> Callable[..., Node]:
    data = fakes.write(tmp_path / "data", CLIENTS)
    return lambda run_config=None, **config: Node.of(
        {"data": str(data), "state": str(tmp_path / "state"), **config}, run_config or app()
    )


def ask(node: Node, kind: str, content: RecordDict) -> RecordDict:
    reply = fakes.carried(answer(kind, lambda: node, fakes.carried(content)))
    check_refusal(reply)
    return reply


# -- Replies of other nodes, and replies that come again ---------------------------------------------------------


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> tuple[InMemoryLinkState, list[int], Message]:
    """A SuperLink's state, its two nodes, and a message to the first."""
    state = InMemoryLinkState(NoOpFederationManager(), ObjectStoreFactory().store())
    run = state.create_run("wafl/study", "1.0.0", "f" * 64, {}, NOOP_FEDERATION_ID, None, "server", TaskType.SERVER_APP)
    nodes = [state.create_node("server", "server", b"key %d" % number, 1e6) for number in range(2)]
    for node in nodes:
        state.acknowledge_node_heartbeat(node, 1e6)
    for name, value in (("_task_id", 1), ("_run_id", run), ("_node_id", 1)):
        monkeypatch.setattr(fakes.TaskIdentity, name, value)
    message = Message(RecordDict(), nodes[0], MessageType.QUERY)
    message.metadata.__dict__["_message_id"] = message.object_id
    assert state.store_message_ins(message) == message.object_id
    return state, nodes, message


def replied(message: Message, node: int, **values: Any) -> Message:
    reply = Message(RecordDict({"reply": ConfigRecord(values)}), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = node
    reply.metadata.__dict__["_message_id"] = reply.object_id
    return reply


def test_the_superlink_takes_one_reply_to_a_message_and_only_from_its_node(
    link: tuple[InMemoryLinkState, list[int], Message],
) -> None:
    state, (asked, other), message = link
    assert state.store_message_res(replied(message, other, loss=0.0)) is None
    first = replied(message, asked, loss=1.0)
    assert state.store_message_res(first) == first.object_id
    assert state.store_message_res(first) == first.object_id, "the same again changes nothing"
    assert state.store_message_res(replied(message, asked, loss=2.0)) is None
    (kept,) = state.get_message_res({message.object_id}, message.metadata.run_id)
    assert kept.content["reply"]["loss"] == 1.0  # type: ignore[index]


def test_a_reply_is_read_once_and_only_for_the_message_that_it_answers(stage: Stage) -> None:
    """A grid that delivers each reply twice, and again in later rounds, trains the same model."""
    saved = list[bytes]()
    for name in ("once", "again"):
        here = replace(stage, root=stage.root / name)
        grid = here.grid(STUDY, [["c00", "c01"], ["c02", "c03", "c04", "c05"]])
        if name == "again":
            pull, before = grid.pull_messages, list[Message]()

            def twice(message_ids: Any, pull: Any = pull, before: Any = before) -> list[Message]:
                replies = list(pull(message_ids))
                before += replies
                return [*replies, *replies, *before]

            grid.pull_messages = twice
        here.train(STUDY, grid)
        saved += [file.read_bytes() for file in here.study.rglob("params.safetensors")]
    assert len(saved) == 2
    assert saved[0] == saved[1]


def test_a_clock_that_jumps_changes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits by a clock that no one sets."""
    saved = list[bytes]()
    for name in ("usual", "jumps"):
        here = replace(stage, root=stage.root / name)
        grid = here.grid(STUDY, [["c00", "c01", "c02"], ["c03"]])
        if name == "jumps":
            jumps = itertools.cycle([1e8, -1e8])
            monkeypatch.setattr(time, "time", lambda now=time.time, jumps=jumps: now() + next(jumps))
        here.train(STUDY, grid)
        saved += [file.read_bytes() for file in here.study.rglob("params.safetensors")]
    assert saved[0] == saved[1]


# -- What a reply may say about weights --------------------------------------------------------------------------


def test_a_nodes_mean_has_the_weights_of_the_server() -> None:
    """Whatever else a node writes into its reply."""
    ones, params = torch.tensor([1.0, 3.0], dtype=torch.float64), torch.zeros(2)
    query = Query("train", 0, 0, (0, 1), ones, params, SCALARS)
    sent = NodeQuery("fedavg", (0,), (query,), {0: "a", 1: "b"}, 3, "training", partial_sums=True)
    content = RecordDict({"reply": ConfigRecord({"format": fakes.encoded(sent)["query"]["format"]})})  # type: ignore[index]
    content["numbers"] = MetricRecord({"loss": [1.0, 1.0], "cost": [0.0, 0.0]})
    content["vectors"] = fakes.arrays(params=torch.ones(1, 2))
    ((plain, _),) = decode_replies(content, sent)
    claims = {"weights": [1e9, 1e9], "sizes": [10**9, 10**9], "counts": [2]}
    content["reply"] = ConfigRecord({**content["reply"], **claims})  # type: ignore[dict-item]
    ((claimed, _),) = decode_replies(content, sent)
    assert torch.equal(plain.vectors["params"], claimed.vectors["params"])
    assert vars(plain).keys() == {"client", "loss", "cost", "vectors"}, "no reply has a weight"
    content["numbers"] = MetricRecord({"loss": [1.0, 1.0], "cost": [0.0, 0.0], "weight": [1e9, 1e9]})
    with pytest.raises(WireError, match="numbers contains"):
        decode_replies(content, sent)


# -- What a curious server still learns --------------------------------------------------------------------------


def test_the_difference_of_two_means_is_one_clients_update_and_that_is_a_documented_no(
    make_node: Callable[..., Node],
) -> None:
    """With ``partial_sums`` a node sends a mean; the same seed and round give the same batches again."""
    params = torch.zeros(3 * FEATURES + 3)

    def update(*names: str, sums: bool = True) -> Tensor:
        weights, numbers = torch.ones(len(names), dtype=torch.float64), tuple(int(name[1:]) for name in names)
        query = Query("train", 0, 0, numbers, weights, params, SCALARS)
        sent = NodeQuery(
            "fedavg", (0,), (query,), dict(zip(numbers, names, strict=True)), 3, "training", partial_sums=sums
        )
        node = make_node(app(flower={"partial_sums": sums}))
        ((*_, last),) = decode_replies(ask(node, "train", encode_query(sent)), sent)
        return last.vectors["params"].double()

    recovered = 2.0 * update("c00", "c01") - update("c00")
    assert float((recovered - update("c01", sums=False)).abs().max()) < 1e-6


def test_accuracies_recover_a_test_example_and_that_is_a_documented_no(make_node: Callable[..., Node]) -> None:
    """An accuracy counts the examples on one side of a plane; the farthest one along a direction is cut off alone.

    A direction that changes a little cuts the same example, so each of its numbers follows from bisections.
    """
    node, messages = make_node(), 0

    def right(direction: Tensor, at: float) -> float:
        """Return the share of the examples, all of class 2, that lie beyond a plane."""
        nonlocal messages
        messages += 1
        rows = torch.zeros(3, FEATURES + 1)
        rows[2] = STEEP * torch.cat([direction, torch.tensor([-at])])
        params = torch.cat([rows[:, :-1].flatten(), rows[:, -1]])
        test = queries.TestQuery(("c00",), False, params, 3, 0)
        share = test.read(ask(node, "evaluate.test", test.encode()))[0][0].accuracy
        assert share is not None
        return share

    def farthest(direction: Tensor) -> float:
        """Return how far the farthest example lies along a direction, by bisection."""
        low, high = -64.0, 64.0
        while high - low > 2.0**-14:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if right(direction, middle) > 0 else (low, middle)
        return low

    examples = torch.tensor(CLIENTS["c00"]["x_test"])
    direction = torch.tensor([1.0, 0.5, -0.5, 0.25])
    here, small = farthest(direction), 2.0**-4
    found = torch.tensor([(farthest(direction + small * unit) - here) / small for unit in torch.eye(FEATURES)])
    assert float((examples - found).abs().amax(1).min()) < 0.01
    assert messages < 200


def test_a_question_that_ends_in_an_error_counts_and_says_nothing_of_the_data(
    make_node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a node fails is one bit about its data; ``max-questions`` limits how many a server gets."""
    node = make_node(**{"max-questions": 3})

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("row 7, Erika Mustermann, holds NaN")

    monkeypatch.setattr("wafl.flower.node.work.examine", fail)
    test = queries.TestQuery(("c00",), False, torch.zeros(3 * FEATURES + 3), 3, 0).encode()
    for _ in range(3):
        with pytest.raises(
            WireError, match=r"^the model or the method does not fit its examples; its own log says why \(unfit\)$"
        ):
            ask(node, "evaluate.test", test)
    with pytest.raises(WireError, match="c00 would answer its question 4"):
        ask(node, "evaluate.test", test)


# -- Code in messages --------------------------------------------------------------------------------------------


class Bomb:
    """An object whose pickle makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("stype", ["numpy.ndarray", "pickle", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "object"])
def test_code_in_the_model_of_a_question_about_the_next_client_does_not_run(
    stype: str, dtype: str, make_node: Callable[..., Node], tmp_path: Path
) -> None:
    """The message has parameters alone: the model's code is the app's, whose digest the operator allows."""
    questions = {"radii": [0.0], "minimum": 10}
    node = make_node(app(questions=questions))
    state = node.model(3).state_dict()
    content = NextClientQuery(("c00",), state, 3, 9, Questions.of(questions)).encode()
    bomb, name = pickle.dumps(Bomb(tmp_path / "ran")), next(iter(state))
    arrays: Any = content["params"]
    content["params"] = ArrayRecord({**arrays, name: Array(dtype, tuple(state[name].shape), stype, bomb)})
    with pytest.raises(WireError):
        ask(node, "query.next_client", content)
    content["params"] = ArrayRecord({**arrays, "forward": Array("uint8", (len(bomb),), "numpy.ndarray", bomb)})
    with pytest.raises(WireError, match="params contains the arrays"):
        ask(node, "query.next_client", content)
    assert not (tmp_path / "ran").exists()
    pickle.loads(bomb)
    assert (tmp_path / "ran").exists(), "it would have"


# -- What a node may say about its classes -----------------------------------------------------------------------


def greeting(*labels: str) -> Hello:
    return Hello.decode(Hello(("north",), None, None, (), (4,), 3, 3, "mm", None, labels=labels).encode(), False)


WELL = ("healthy", "ill", "unknown")


@pytest.mark.parametrize(
    ("named", "used"),
    [([WELL] * 3, WELL), ([WELL, WELL, ()], WELL), ([WELL, (), ()], None), ([WELL, WELL, WELL[::-1]], None)],
)
def test_one_node_does_not_decide_what_classes_are_called(
    named: list[tuple[str, ...]], used: tuple[str, ...] | None
) -> None:
    assert common_labels([greeting(*labels) for labels in named], 3) == used


@pytest.mark.parametrize("name", ["", "a" * 201, "ill\x1b[2J"])
def test_names_of_classes_are_limited_like_those_of_clients(name: str) -> None:
    with pytest.raises(WireError, match=r"labels has .* a class needs 1 to 200 printable characters"):
        greeting("healthy", name, "unknown")
