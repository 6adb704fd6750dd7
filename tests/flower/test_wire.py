"""Messages between server and nodes: what was written is read, and nothing else is used."""

from __future__ import annotations

import io
import logging
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.oracles import flower_fakes as fakes
from tests.oracles.flower_fakes import carried
from wafl.flower.node import queries
from wafl.flower.node.examples import CutsQuery, MeansQuery
from wafl.flower.node.hello import Hello
from wafl.flower.node.next_client import NextClientQuery
from wafl.flower.node.queries import SurveyQuery, answer
from wafl.flower.node.refusals import check_refusal, refusal
from wafl.flower.node.work import Node
from wafl.flower.wire.logs import log, shown_safely
from wafl.flower.wire.values import (
    FORMAT,
    NodeQuery,
    WireError,
    arrays,
    config_only,
    decode_query,
    decode_replies,
    encode_query,
    encode_replies,
)
from wafl.parts.messages import Query, Replies
from wafl.receipts.questions import Questions

SIZE = 15
"""Parameters of the model of these tests: three classes, four inputs."""
NAMES = {0: "c00", 4: "c02", 7: "c01"}
EXPERIMENT: dict[str, Any] = {
    "seeds": [3, 1],
    "schedule": {"rounds": 3, "local_steps": 2, "batch_size": 2, "learning_rate": 0.1},
    "methods": [
        {"method": "DRFA", "local": {"kind": "control_variates"}},
        {"method": "WAFL", "gamma": 2.0},
        {"method": "AFL"},
    ],
    "attack": {"steps": 2},
}
SCALARS = {"learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}


def run_query(
    clients: tuple[int, ...],
    *,
    kind: Any = "train",
    seed: int = 3,
    vectors: Any = (),
    iterates: Any = (),
    sends: Any = (),
) -> Query:
    weights = torch.arange(1, len(clients) + 1, dtype=torch.float64) / 7
    named = {name: torch.linspace(0, index + seed, SIZE) for index, name in enumerate(vectors)}
    steps = {name: index + seed for index, name in enumerate(iterates)}
    return Query(kind, 2, seed, clients, weights, torch.linspace(-1, 1, SIZE), SCALARS, named, steps, tuple(sends))


def node_query(kind: Any = "train", **names: Any) -> NodeQuery:
    """Two runs of DRFA, with two clients and with one."""
    queries = (run_query((4, 0), kind=kind, **names), run_query((7,), kind=kind, seed=1, **names))
    return NodeQuery("drfa", (0, 1), queries, NAMES, 3, "training")


USUAL: dict[str, Any] = {"vectors": ["control"], "iterates": ["snapshot"], "sends": ["control"]}
"""The names of DRFA with control variates."""


def usual(kind: Any = "train") -> NodeQuery:
    """The query to the node of these tests, by one of its methods."""
    return node_query(kind, **USUAL if kind == "train" else {})


SEVERAL: dict[str, Any] = {"vectors": ["control", "a b", "ä"], "iterates": ["early", "late"], "sends": ["ä", "control"]}


def several() -> NodeQuery:
    """A query with several names of each kind, which none of our methods has."""
    return node_query(**SEVERAL)


def like(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(SIZE, dtype=dtype)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    base = tmp_path_factory.mktemp("node")
    folder = fakes.write(base / "data", fakes.make_clients((3, 4, 5)))
    return Node.of({"data": str(folder), "state": str(base / "state"), **fakes.ADMITTED}, fakes.flat(EXPERIMENT))


def assert_equal(query: NodeQuery, other: NodeQuery) -> None:
    assert replace(query, queries=()) == replace(other, queries=())
    for one, two in zip(query.queries, other.queries, strict=True):
        assert torch.equal(one.params, two.params)
        assert one.params.dtype == two.params.dtype
        assert one.weights.tolist() == two.weights.tolist()
        assert one.vectors.keys() == two.vectors.keys()
        for name, vector in one.vectors.items():
            assert torch.equal(vector, two.vectors[name])
            assert vector.dtype == two.vectors[name].dtype
        empty = torch.zeros(0)
        bare = [replace(each, params=empty, weights=empty, vectors={}) for each in (one, two)]
        assert bare[0] == bare[1]


# -- What was written is read -----------------------------------------------------------------------------------

QUERIES = {"drfa": usual(), "loss": usual("loss"), "several": several(), "plain": node_query()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_read_as_it_was_written(name: str, dtype: torch.dtype) -> None:
    def cast(each: Query) -> Query:
        vectors = {vector: value.to(dtype) for vector, value in each.vectors.items()}
        return replace(each, params=each.params.to(dtype), vectors=vectors)

    query = replace(QUERIES[name], saved=4, partial_sums=True, queries=tuple(map(cast, QUERIES[name].queries)))
    assert_equal(decode_query(carried(encode_query(query)), like(dtype)), query)


def made(query: NodeQuery, seed: int = 0) -> list[Replies]:
    """Replies of the right shapes."""
    draws = torch.Generator().manual_seed(seed)
    collected: list[Replies] = []
    for each in query.queries:
        vectors = {name: torch.randn((len(each.clients), SIZE), generator=draws) for name in each.wanted}
        loss, cost = (torch.rand(len(each.clients), generator=draws) for _ in range(2))
        collected.append(Replies(each.clients, loss, cost, vectors))
    return collected


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_replies_are_read_as_they_were_written(query: NodeQuery) -> None:
    written = made(query)
    result = decode_replies(carried(encode_replies(query, written)), query)
    for each, replies, parts in zip(query.queries, written, result, strict=True):
        assert tuple(part.client for part in parts) == each.clients
        for index, part in enumerate(parts):
            assert torch.equal(part.loss, replies.loss[index])
            assert torch.equal(part.cost, replies.cost[index])
            assert part.vectors.keys() == replies.vectors.keys() == set(each.wanted)
            for name, vector in part.vectors.items():
                assert torch.equal(vector, replies.vectors[name][index])


@pytest.mark.parametrize("spoil", ["nothing", "loss", "cost", *several().queries[0].wanted])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_partial_sum_is_the_weighted_mean_of_clients_with_finite_numbers(spoil: str, value: float) -> None:
    """A client with any non-finite number is in no mean, and its loss or cost shows it."""
    query = replace(several(), partial_sums=True)
    written = made(query)
    if spoil != "nothing":
        numbers = {"loss": written[0].loss, "cost": written[0].cost, **written[0].vectors}
        numbers[spoil].view(2, -1)[1, 0] = value  # of the second client of the first run
    result = decode_replies(carried(encode_replies(query, written)), query)
    weight = [1 / 7, 2 / 7]
    for run, clients in ((0, [0, 1]), (1, [0])):
        sound = [client for client in clients if spoil == "nothing" or (run, client) != (0, 1)]
        total = sum(weight[client] for client in sound)
        for name, rows in written[run].vectors.items():
            mean = sum(weight[client] / total * rows[client].double() for client in sound)
            for client in sound:
                torch.testing.assert_close(result[run][client].vectors[name].double(), mean, rtol=0, atol=1e-6)
        for client in clients:
            finite = math.isfinite(float(result[run][client].loss)) and math.isfinite(float(result[run][client].cost))
            assert finite == (client in sound)
    sent = encode_replies(query, written)["vectors"]
    assert {name: sent[name].shape for name in sent} == dict.fromkeys(query.queries[0].wanted, (2, SIZE))


def test_partial_sums_of_clients_with_zero_weight_are_finite() -> None:
    query = replace(several(), partial_sums=True)
    query = replace(
        query, queries=tuple(replace(each, weights=torch.zeros_like(each.weights)) for each in query.queries)
    )
    for parts in decode_replies(carried(encode_replies(query, made(query))), query):
        for part in parts:
            assert part.vectors.keys() == set(query.queries[0].wanted)
            assert all(bool(torch.isfinite(vector).all()) for vector in part.vectors.values())


# -- Queries that are not what was agreed on -----------------------------------------------------------------------


def is_int(value: Any, low: int = 0, high: int = 2**62) -> bool:
    return type(value) is int and low <= value <= high


def is_list(value: Any, count: int, each: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) == count and all(each(item) for item in value)


def is_number(value: Any, low: float = -math.inf) -> bool:
    return type(value) is float and math.isfinite(value) and value >= low


def is_name(value: Any) -> bool:
    return type(value) is str and value not in ("", "params")


def different(value: list[Any]) -> bool:
    return len(set(value)) == len(value)


VALID: dict[str, Callable[[Any], bool]] = {
    "format": lambda v: is_int(v) and v == FORMAT,
    "entry": lambda v: type(v) is str,
    "kind": lambda v: v in ("train", "loss"),
    "round": is_int,
    "runs": lambda v: is_list(v, 2, is_int) and different(v),
    "seeds": lambda v: is_list(v, 2, is_int),
    "numbers": lambda v: is_list(v, 3, is_int) and different(v) and {0, 4, 7} == set(v),
    "names": lambda v: is_list(v, 3, lambda name: type(name) is str) and different(v),
    "counts": lambda v: v == [2, 1],
    "clients": lambda v: is_list(v, 3, lambda each: each in (0, 4, 7) and type(each) is int) and v[0] != v[1],
    "weights": lambda v: is_list(v, 3, lambda each: is_number(each, 0.0)),
    "scalars": lambda v: is_list(v, 3, lambda each: type(each) is str) and different(v) and "" not in v,
    "values": lambda v: is_list(v, 6, is_number),
    "outputs": lambda v: is_int(v, 1, 2 * SIZE),
    "training": lambda v: type(v) is str,
    "saved": lambda v: is_int(v, -1),
    "sums": lambda v: type(v) is bool,
    "pair": lambda v: type(v) is bool,
    "largest": lambda v: is_int(v, -1, 10**9),
    "vectors": lambda v: isinstance(v, list) and sorted(v, key=repr) == sorted(SEVERAL["vectors"], key=repr),
    "iterates": lambda v: is_list(v, 2, is_name) and different(v) and not {*v} & {*SEVERAL["sends"]},
    "sends": lambda v: isinstance(v, list) and all(map(is_name, v)) and different(v) and not {*v} & {"early", "late"},
    "steps": lambda v: is_list(v, 4, lambda each: is_int(each, 1)),
}
"""What each value of a query with several names may be if the others stay as they are."""

scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 9),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
values = st.one_of(
    scalars,
    *(
        st.lists(kind, max_size=8)
        for kind in (st.booleans(), st.integers(-2, 9), st.floats(), st.text(max_size=3), st.binary(max_size=3))
    ),
    st.permutations([0, 4, 7]).map(list),
    st.lists(st.sampled_from(["params", "", "control", "a b", "ä", "early", "late", "x", "y"]), max_size=4),
    st.just([0] * 10_000),
)


def with_value(content: RecordDict, record: str, name: str, value: Any) -> RecordDict:
    return RecordDict({**content, record: ConfigRecord({**content[record], name: value})})


def without(content: RecordDict, record: str, name: str) -> RecordDict:
    kept = {key: value for key, value in content[record].items() if key != name}
    return RecordDict({**content, record: type(content[record])(kept)})


def test_the_table_of_valid_values_covers_every_value_of_a_query() -> None:
    content = encode_query(several())
    assert VALID.keys() == content["query"].keys()
    for name, valid in VALID.items():
        assert valid(content["query"][name]), name


@settings(max_examples=400)
@given(name=st.sampled_from(sorted(VALID)), value=values)
def test_an_invalid_value_in_a_query_is_refused(name: str, value: Any) -> None:
    content = with_value(encode_query(several()), "query", name, value)
    if VALID[name](value):
        decode_query(carried(content), like())
    else:
        with pytest.raises(WireError):
            decode_query(carried(content), like())


@pytest.mark.parametrize("name", VALID)
def test_a_query_without_one_of_its_values_is_refused(name: str, node: Node) -> None:
    """A query may do without ``sends``, but not one for this method: the node refuses it."""
    if name != "sends":
        with pytest.raises(WireError):
            decode_query(carried(without(encode_query(several()), "query", name)), like())
    with pytest.raises(WireError):
        check_refusal(answer("train", lambda: node, without(encode_query(usual()), "query", name)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scalars", ["a", "b", "c"]),
        ("names", ["c00", "c02", "unknown"]),
        ("entry", "fedavg"),
        ("runs", [0, 2]),
        ("outputs", 2),
        ("outputs", 4),
        ("vectors", []),
        ("vectors", ["control", "more"]),
        ("iterates", ["other"]),
        ("sends", []),
        ("sends", ["control", "more"]),
        ("sends", ["snapshot"]),
        ("kind", "loss"),
    ],
)
def test_a_node_refuses_in_words_what_its_methods_do_not_do(name: str, value: Any, node: Node) -> None:
    reply = answer("train", lambda: node, carried(with_value(encode_query(usual()), "query", name, value)))
    with pytest.raises(WireError, match=r".{15}"):
        check_refusal(reply)


def test_a_node_answers_the_usual_query(node: Node) -> None:
    """Otherwise the tests above could not fail."""
    assert [len(part) for part in decode_replies(answer("train", lambda: node, encode_query(usual())), usual())] == [
        2,
        1,
    ]
    reported = answer("evaluate", lambda: node, encode_query(usual("loss")))
    assert [len(part) for part in decode_replies(reported, usual("loss"))] == [2, 1]


MANY = [f"name {number}" for number in range(10_000)]


@pytest.mark.parametrize("name", ["scalars", "vectors", "iterates", "sends", "names", "runs"])
def test_ten_thousand_names_are_refused_before_any_array_is_read(
    name: str, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is short, however many names there are."""
    changes: dict[str, dict[str, list[Any]]] = {
        "scalars": {"scalars": MANY, "values": [1.0] * 20_000},
        "vectors": {"vectors": MANY},
        "iterates": {"iterates": MANY, "steps": [1] * 20_000},
        "sends": {"sends": MANY},
        "names": {"names": MANY, "numbers": list(range(10_000))},
        "runs": {"runs": list(range(10_000))},
    }
    content = encode_query(usual())
    for key, value in changes[name].items():
        content = with_value(content, "query", key, value)
    if name == "vectors":
        content["vectors"] = ArrayRecord(dict.fromkeys(MANY, packed("float32", (0,), b"")))
    monkeypatch.setattr(np, "frombuffer", never)
    reply = answer("train", lambda: node, content)
    assert len(reply["refused"]["why"]) < 500
    assert "decoded" not in reply["refused"]["why"]
    with pytest.raises(WireError, match=r".{15}"):
        check_refusal(reply)


def test_no_iterate_leaves_a_client_whose_method_does_not_ask_for_one(node: Node) -> None:
    """Iterates are not clipped: under no name may a server get one from clients that clip their updates."""
    for entry, names in (("wafl", ["snapshot"]), ("wafl", ["params"]), ("afl", ["snapshot"])):
        scalars = SCALARS | ({"gamma": 2.0} if entry == "wafl" else {})
        asked = node_query(iterates=names)
        asked = replace(asked, entry=entry, queries=tuple(replace(each, scalars=scalars) for each in asked.queries))
        with pytest.raises(WireError, match="iterates"):
            check_refusal(answer("train", lambda: node, carried(encode_query(asked))))
        plain = tuple(replace(each, iterates={}) for each in asked.queries)
        check_refusal(answer("train", lambda: node, carried(encode_query(replace(asked, queries=plain)))))


def test_no_losses_leave_a_client_whose_method_does_not_ask_for_them(node: Node) -> None:
    asked = node_query("loss")
    asked = replace(asked, entry="afl")
    curious = replace(asked, queries=tuple(replace(each, sends=("gradient",)) for each in asked.queries))
    for each in (asked, curious):
        with pytest.raises(WireError, match="afl does not ask clients for their losses"):
            check_refusal(answer("evaluate", lambda: node, carried(encode_query(each))))


@pytest.mark.parametrize(("count", "value", "why"), [(1000, 0.0, "must all differ"), (1, math.nan, "NaN")])
def test_a_test_or_survey_of_a_client_twice_or_at_non_finite_numbers_is_refused(
    count: int, value: float, why: str, node: Node
) -> None:
    """Each name costs a node a copy of the client's examples."""
    names, params = ("c00",) * count, torch.full((SIZE,), value)
    for kind, content in {
        "evaluate.test": queries.TestQuery(names, False, params, 3, 0).encode(),
        "query.survey": SurveyQuery(names, params.double(), 3, [{}], None, 0).encode(),
        "query.graph": queries.GraphQuery(names, params.double(), 3).encode(),
    }.items():
        with pytest.raises(WireError, match=why):
            check_refusal(answer(kind, lambda: node, carried(content)))


@pytest.mark.parametrize(
    ("count", "scalars", "norm"),
    [
        (2, [], None),
        (1, ["gamma"], None),
        (1, [], "2"),
        (1, ["gamma"], "2"),
        (1, ["gamma", "gamma"], "2"),
        (1, ["curvature", "other"], "2"),
        (10_001, ["curvature", "gamma"], "2"),
    ],
)
def test_a_survey_with_unknown_scalars_or_too_many_settings_is_refused(
    count: int, scalars: list[str], norm: str | None, node: Node
) -> None:
    """A number in a message must not make a node take a million surveys."""
    content = SurveyQuery(("c00",), torch.zeros(SIZE).double(), 3, [{}], None, 0).encode()
    changes = {"count": count, "scalars": scalars, "values": [1.0] * (count * len(scalars)), "norm": norm}
    for name, value in changes.items():
        if value is not None and value != []:
            content = with_value(content, "query", name, value)
    if norm is not None:
        content = with_value(content, "query", "report", "smooth")
    with pytest.raises(WireError, match=r"scalars|count"):
        check_refusal(answer("query.survey", lambda: node, carried(content)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("part", "all", "part='all' must be one of train, test"), ("moments", 1, "moments=1 must be of type bool")],
)
def test_a_survey_of_another_part_is_refused(name: str, value: Any, message: str, node: Node) -> None:
    content = SurveyQuery(("c00",), torch.zeros(SIZE).double(), 3, [{}], None, 0).encode()
    with pytest.raises(WireError, match=message):
        check_refusal(answer("query.survey", lambda: node, carried(with_value(content, "query", name, value))))


def test_a_node_builds_no_model_larger_than_the_parameters_it_was_sent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number in a message must not make a node allocate more than the message could fill."""
    import wafl.flower.node.work as module

    built: list[int] = []
    make_model = module.make_model

    def spy(model: Any, clients: Any) -> Any:
        built.append(clients.num_outputs)
        return make_model(model, clients)

    monkeypatch.setattr(module, "make_model", spy)
    content = with_value(encode_query(usual()), "query", "outputs", 300_000)
    for sent in (content, with_array(content, "params", "params", packed("float32", (10**9,), b""))):
        with pytest.raises(WireError):
            check_refusal(answer("train", lambda: node, carried(sent)))
    assert max(built, default=0) <= 2 * SIZE


# -- Arrays -----------------------------------------------------------------------------------------------------


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("decoded")


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([print, 1], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npy(shape: tuple[int, ...], body: bytes = b"", descr: str = "<f4", *, fortran: bool = False) -> bytes:
    """An array file whose header may lie."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return buffer.getvalue() + body


def packed(dtype: str, shape: tuple[int, ...], body: bytes) -> Array:
    """Flower's own form of an array, with a header that says what the array says."""
    descr = np.dtype(dtype).str if dtype else ""
    return Array(dtype, shape, "numpy.ndarray", npy(shape, body, descr))


def zipped() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, params=np.zeros((2, SIZE), np.float32))
    return buffer.getvalue()


WRONG: dict[str, Array] = {
    "another type": packed("float64", (2, SIZE), bytes(2 * SIZE * 8)),
    "a type that lies": packed("float32", (2, SIZE), bytes(2 * SIZE * 8)),
    "half precision": packed("float16", (2, SIZE), bytes(2 * SIZE * 2)),
    "integers": packed("int32", (2, SIZE), bytes(2 * SIZE * 4)),
    "objects": packed("object", (2, SIZE), bytes(2 * SIZE * 4)),
    "another shape": packed("float32", (SIZE, 2), bytes(2 * SIZE * 4)),
    "one row": packed("float32", (1, SIZE), bytes(SIZE * 4)),
    "flat": packed("float32", (2 * SIZE,), bytes(2 * SIZE * 4)),
    "a shape that lies": packed("float32", (2, SIZE), bytes(SIZE * 4)),
    "negative": packed("float32", (-2, -SIZE), bytes(2 * SIZE * 4)),
    "enormous": packed("float32", (10**9, 10**9), b""),
    "too long": packed("float32", (2, SIZE), bytes(10**7)),
    "one byte more": packed("float32", (2, SIZE), bytes(2 * SIZE * 4 + 1)),
    "empty": packed("float32", (2, SIZE), b""),
    "column by column": Array("float32", (2, SIZE), "numpy.ndarray", npy((2, SIZE), bytes(2 * SIZE * 4), fortran=True)),
    "big-endian": Array("float32", (2, SIZE), "numpy.ndarray", npy((2, SIZE), bytes(2 * SIZE * 4), ">f4")),
    "numbers without a header": Array("float32", (2, SIZE), "wafl.raw", bytes(2 * SIZE * 4)),
    "a later version": Array("float32", (2, SIZE), "numpy.ndarray", b"\x93NUMPY\x02\x00" + npy((2, SIZE))[8:]),
    "unknown bytes": Array("float32", (2, SIZE), "cloudpickle", bytes(2 * SIZE * 4)),
    "an object array": Array("float32", (2, SIZE), "numpy.ndarray", pickled()),
    "a pickle": Array("float32", (2, SIZE), "numpy.ndarray", pickle.dumps(bytes(120))),
    "an archive": Array("float32", (2, SIZE), "numpy.ndarray", zipped()),
    "half an archive": Array("float32", (2, SIZE), "numpy.ndarray", b"PK\x03\x04" + bytes(100)),
    "a header that lies": Array("float32", (2, SIZE), "numpy.ndarray", npy((10**11,), bytes(8))),
    "a header of brackets": Array(
        "float32", (2, SIZE), "numpy.ndarray", b"\x93NUMPY\x01\x00\xc8\x00" + b"(" * 199 + b"\n"
    ),
}


def with_array(content: RecordDict, record: str, name: str, array: Array) -> RecordDict:
    return RecordDict({**content, record: ArrayRecord({**content[record], name: array})})


@pytest.mark.parametrize("wrong", WRONG)
def test_an_array_of_another_type_shape_or_size_is_refused_on_both_sides(wrong: str) -> None:
    """None of it is unpickled, decoded or allocated."""
    query = replace(several(), partial_sums=True)
    for record, name in (("params", "params"), *(("vectors", name) for name in query.queries[0].vectors)):
        with pytest.raises(WireError):
            decode_query(carried(with_array(encode_query(query), record, name, WRONG[wrong])), like())
    reply = encode_replies(query, made(query))
    for name in query.queries[0].wanted:
        with pytest.raises(WireError):
            decode_replies(carried(with_array(reply, "vectors", name, WRONG[wrong])), query)


def test_a_message_with_missing_or_further_arrays_is_refused_on_both_sides() -> None:
    """What was not asked for is not even read."""
    query = several()
    content, reply = encode_query(query), encode_replies(query, made(query))
    right = packed("float32", (2, SIZE), bytes(2 * SIZE * 4))
    for record, name in (("params", "params"), *(("vectors", name) for name in query.queries[0].vectors)):
        with pytest.raises(WireError):
            decode_query(carried(without(content, record, name)), like())
    for record, name in (("params", "other"), ("vectors", "other"), ("vectors", "params"), ("vectors", "")):
        with pytest.raises(WireError):
            decode_query(carried(with_array(content, record, name, right)), like())
    with pytest.raises(WireError):
        decode_query(carried(RecordDict({**encode_query(node_query()), "vectors": content["vectors"]})), like())
    for record in ("numbers", "vectors"):
        for name in reply[record]:
            with pytest.raises(WireError):
                decode_replies(carried(without(reply, record, name)), query)
    with pytest.raises(WireError):
        decode_replies(carried(with_array(reply, "vectors", "other", right)), query)
    for wrong in ({"other": [0.0] * 3}, {"loss": [0.0] * 2}, {"loss": [1, 2, 3]}, {"loss": 0.0}):
        spoilt = RecordDict({**reply, "numbers": MetricRecord({**reply["numbers"], **wrong})})
        with pytest.raises(WireError):
            decode_replies(carried(spoilt), query)
    with pytest.raises(WireError):
        decode_replies(carried(reply), node_query())
    losses = encode_replies(node_query("loss"), made(node_query("loss")))
    with pytest.raises(WireError):
        decode_replies(carried(RecordDict({**losses, "vectors": reply["vectors"]})), node_query("loss"))


def test_an_array_that_is_too_large_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "frombuffer", never)
    monkeypatch.setattr(np, "load", never)
    for wrong in ("too long", "one byte more", "a header that lies"):
        with pytest.raises(WireError, match=r"bytes|byte"):
            decode_query(with_array(encode_query(usual()), "params", "params", WRONG[wrong]), like())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_node_refuses_non_finite_parameters_and_vectors(value: float) -> None:
    for name in (None, *SEVERAL["vectors"]):
        query = several()
        (query.queries[1].params if name is None else query.queries[1].vectors[name])[3] = value
        with pytest.raises(WireError, match="NaN or infinity"):
            decode_query(carried(encode_query(query)), like())


# -- Replies that are not what was agreed on --------------------------------------------------------------------


@cache
def readers() -> dict[str, tuple[Callable[[RecordDict], Any], RecordDict]]:
    """Each kind of reply: how it is read, and a valid one, which tests copy to change it."""
    hello = Hello(("a", "b"), (0, 1), (5, 6), ("a",), (4,), 3, 3, "input units", (0.0, 1.0))
    survey = SurveyQuery(("a", "b"), torch.zeros(SIZE, dtype=torch.float64), 3, [{"gamma": 1.0}], 2.0, 0)
    tested = config_only("reply", sizes=[3, 4], losses=[0.5] * 4, right=[0.5] * 4)
    surveyed = RecordDict({
        "reply": ConfigRecord({"count": 1}),
        "numbers": arrays(value=torch.zeros(1, 2, dtype=torch.float64), cost=torch.zeros(1, 2, dtype=torch.float64)),
    })  # fmt: skip
    target, g = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    spread = RecordDict(
        {"numbers": arrays(means=torch.zeros(2, dtype=torch.float64), shares=torch.eye(3)[:2].double())}
    )
    means = RecordDict({
        "reply": ConfigRecord({"format": FORMAT, "labels": [0, 2, 1], "places": [0, 0, 1], "counts": [3, 2, 5]}),
        "numbers": arrays(means=torch.ones(3, 2, 4, dtype=torch.float64)),
    })  # fmt: skip
    questions = Questions(grid=(0.0, 1.0), minimum=5)
    next_client = NextClientQuery(("a", "b"), {}, 3, 2, questions)
    replies = RecordDict({
        "reply": ConfigRecord({"format": FORMAT, "sizes": [5, 0], "faults": ["", "few"], "reasons": ["", ""]}),
        "numbers": arrays(
            values=torch.zeros(2, 1, dtype=torch.float64),
            uppers=torch.zeros(2, 1, dtype=torch.float64),
            above=torch.zeros(2, 1, 2, dtype=torch.float64),
        ),
    })  # fmt: skip
    return {
        "next client": (next_client.read, replies),
        "work": (lambda reply: decode_replies(reply, usual()), encode_replies(usual(), made(usual()))),
        "hello": (lambda reply: Hello.decode(reply, True), hello.encode()),
        "test": (queries.TestQuery(("a", "b"), True, torch.zeros(SIZE), 3, 0).read, tested),
        "survey": (survey.read, surveyed),
        "cuts": (CutsQuery(("a", "b"), (0, 1), target, g, 9, 0).read, spread),
        "means": (MeansQuery(("a", "b"), (7, 4), 3, 4).read, means),
    }


@pytest.mark.parametrize("which", readers())
def test_a_valid_reply_is_read(which: str) -> None:
    read, reply = readers()[which]
    read(carried(reply))


@pytest.mark.parametrize("which", readers())
def test_a_reply_without_one_of_its_parts_is_refused(which: str) -> None:
    optional = {"reply.numbers", "reply.bounds", "reply.tested", "reply.right", "reply.count"}
    read, reply = readers()[which]
    for record in reply:
        bare = RecordDict({name: part for name, part in reply.items() if name != record})
        if (which, record) != ("survey", "reply"):
            for content in (bare, RecordDict({**bare, record: MetricRecord({"a": 1.0})})):
                with pytest.raises(WireError):
                    read(carried(content))
        for name in reply[record]:
            if f"{record}.{name}" not in optional:
                with pytest.raises(WireError):
                    read(carried(without(reply, record, name)))


@pytest.mark.parametrize("which", ["survey", "cuts", "means"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_server_refuses_non_finite_survey_values_cuts_and_means(which: str, value: float) -> None:
    read, reply = readers()[which]
    for name in reply["numbers"]:
        with pytest.raises(WireError):
            read(carried(fakes.spoiled(reply, "numbers", name, lambda x: x + value)))


ALLOWED: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("hello", "names"): lambda v: is_list(v, 2, lambda each: type(each) is str) and different(v),
    ("hello", "numbers"): lambda v: is_list(v, 2, is_int) and different(v),
    ("hello", "sizes"): lambda v: is_list(v, 2, lambda each: is_int(each, 1)),
    ("hello", "tested"): lambda v: isinstance(v, list) and all(type(each) is str for each in v),
    ("hello", "shape"): lambda v: isinstance(v, list) and v != [] and all(is_int(each, 1) for each in v),
    ("hello", "classes"): lambda v: is_int(v) and v in (0, 3),
    ("hello", "outputs"): lambda v: is_int(v) and v == 3,
    ("hello", "unit"): lambda v: type(v) is str,
    ("hello", "bounds"): lambda v: is_list(v, 2, is_number) and v[0] < v[1],
    ("test", "sizes"): lambda v: is_list(v, 2, lambda each: is_int(each, 1)),
    ("test", "losses"): lambda v: is_list(v, 4, is_number),
    ("test", "right"): lambda v: v == [] or is_list(v, 4, lambda each: is_number(each, 0.0) and each <= 1),
    ("means", "counts"): lambda v: is_list(v, 3, lambda each: is_int(each, 2)),
    ("work", "format"): lambda v: v == FORMAT and type(v) is int,
    ("next client", "sizes"): lambda v: is_list(v, 2, is_int),
    ("next client", "faults"): lambda v: is_list(v, 2, lambda each: type(each) is str),
    ("next client", "reasons"): lambda v: is_list(v, 2, lambda each: type(each) is str),
}
"""What each value of these replies may be if the others stay as they are."""


@settings(max_examples=400)
@given(index=st.sampled_from(sorted(ALLOWED)), value=values)
def test_an_invalid_value_in_a_reply_is_refused(index: tuple[str, str], value: Any) -> None:
    read, reply = readers()[index[0]]
    content = with_value(reply, "reply", index[1], value)
    if ALLOWED[index](value):
        read(carried(content))
    else:
        with pytest.raises(WireError):
            read(carried(content))


array = st.builds(
    Array,
    dtype=st.sampled_from(["float32", "float64", "object"]),
    shape=st.lists(st.integers(0, 5), max_size=3).map(tuple),
    stype=st.sampled_from(["wafl.raw", "numpy.ndarray"]),
    data=st.binary(max_size=40),
)
names = st.sampled_from(["query", "reply", "numbers", "params", "vectors", "refused", "x"])
inner = st.sampled_from(
    [*VALID, "loss", "cost", "params", "control", "snapshot", "value", "means", "shares", "why", "sizes", "x"]
)
records = st.one_of(
    st.dictionaries(inner, values, max_size=6).map(ConfigRecord),
    st.dictionaries(inner, array, max_size=3).map(ArrayRecord),
    st.dictionaries(inner, st.integers(0, 5), max_size=3).map(MetricRecord),
)


KINDS = [kind for kind in queries.HANDLERS if kind != "query.hello"]


@settings(max_examples=100)
@given(content=st.dictionaries(names, records, max_size=4).map(RecordDict))
def test_a_random_message_is_refused_by_every_reader_and_by_a_node_in_words(content: RecordDict) -> None:
    for read, _ in readers().values():
        with pytest.raises(WireError):
            read(content)
    for kind in KINDS:
        with pytest.raises(WireError, match=r".{10}"):
            check_refusal(answer(kind, lambda: NODE[0], content))


NODE: list[Node] = []


@pytest.fixture(autouse=True, scope="module")
def node_for_any_example(node: Node) -> None:
    NODE.append(node)


def test_a_refusal_keeps_the_nodes_own_words_but_not_a_million_of_them() -> None:
    with pytest.raises(WireError, match=r"^the disk is full \(error\)$"):
        check_refusal(carried(refusal("error", "the disk is full")))
    with pytest.raises(WireError) as caught:
        check_refusal(refusal("x" * 10**6, "x" * 10**6))
    assert len(str(caught.value)) <= 1100
    for broken in (ConfigRecord({"code": "error", "why": 3}), ConfigRecord({"why": "?"}), MetricRecord({"why": 3})):
        with pytest.raises(WireError):
            check_refusal(RecordDict({"refused": broken}))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("Erika Mustermann"), "error"),
        (ValueError("row 7, Erika Mustermann, holds NaN"), "unfit"),
        (MemoryError("Erika Mustermann"), "memory"),
    ],
)
def test_an_errors_text_stays_in_the_nodes_log_and_a_code_travels(
    error: Exception, code: str, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise error

    def unopened() -> Node:
        raise error

    monkeypatch.setattr(node, "task", fail)
    for opened, wanted in ((lambda: node, code), (unopened, "setup")):
        caplog.clear()
        reply = carried(answer("train", opened, encode_query(usual())))
        assert reply["refused"]["code"] == wanted
        assert "Mustermann" not in str({record: dict(values) for record, values in reply.items()})
        assert "Mustermann" in caplog.text
        assert "Traceback" in caplog.text


@pytest.mark.parametrize("number", [None, FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_by_both_sides_in_words(number: int | None, node: Node) -> None:
    """None is what a version wrote that gave greetings no format."""

    def spoil(content: RecordDict, record: str) -> RecordDict:
        return without(content, record, "format") if number is None else with_value(content, record, "format", number)

    hello = spoil(config_only("query", sizes=False), "query")
    formats = f"(none|{FORMAT - 1}|{FORMAT + 1})"
    remedy = rf"format {formats}, this {{}}'s wafl-learn \S+ has format {FORMAT}: install the same version"
    with pytest.raises(WireError, match=rf"^the server's messages have {remedy.format('node')}"):
        check_refusal(answer("query.hello", lambda: node, hello))
    reply = answer("query.hello", lambda: node, config_only("query", sizes=False))
    assert Hello.decode(reply, False).names
    with pytest.raises(WireError, match=rf"^the node's messages have {remedy.format('server')}"):
        Hello.decode(spoil(reply, "reply"), False)


def test_names_in_the_log_cannot_forge_a_line_or_steer_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"):
        log(logging.WARNING, "%s left %d", "c01\nINFO: all is well \x1b[2J", 3)
    assert [record.getMessage() for record in caplog.records] == ["c01 INFO: all is well ?[2J left 3"]
    error = ValueError("client \x1b[2J")
    error.__cause__ = KeyError("\x1b[31m")
    shown_safely(error)
    assert (str(error), error.__cause__.args) == ("client ?[2J", ("?[31m",))
