"""Encode messages between a server and its nodes: plain values and arrays without code, all checked on arrival."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.constant import SType
from torch import Tensor

from wafl.parts.messages import PARAMS, Query, Replies, Reply
from wafl.train.trust.admission import split

FORMAT = 6
"""The format of all messages, raised with every change, so that a mismatch is reported at the greeting."""
HEADER = 256
"""The maximum size of an array's header: an array is a numpy file, so that Flower's mods can read it."""
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64"}
NUMBERS = ("loss", "cost")
"""A client's report for each query, in a record of metrics, so that a reply has one record of arrays."""
LARGEST = 2**62
LONGEST = 1000
"""The maximum length of a refusal."""
T = TypeVar("T", int, float, str, bool)


class WireError(ValueError):
    """A message that breaks the agreed format; none of it is used."""


@dataclass(frozen=True)
class NodeQuery:
    """The queries to one node: one query per run, to its clients.

    ``entry`` is the method's name in the experiment, ``runs`` are indices in its sweep, and ``names`` maps each index
    to its client. ``training`` names the training, and ``saved`` is the last round that the server will not request
    again. With ``pair``, a single lane is computed next to a copy of itself. ``largest`` is the size of the largest
    client, None if the method does not need it. ``cost_matrix`` ``[D, D]`` is the ball's matrix, if it comes from the
    clients.
    """

    entry: str
    runs: tuple[int, ...]
    queries: tuple[Query, ...]
    names: Mapping[int, str]
    num_outputs: int
    training: str
    saved: int = -1
    partial_sums: bool = False
    pair: bool = False
    largest: int | None = None
    cost_matrix: Tensor | None = None


def encode_query(query: NodeQuery) -> RecordDict:
    """Return the message of a query."""
    first, scalars, iterates = query.queries[0], sorted(query.queries[0].scalars), sorted(query.queries[0].iterates)
    content = config_only(
        "query",
        entry=query.entry,
        kind=first.kind,
        round=first.round,
        runs=query.runs,
        seeds=[each.seed for each in query.queries],
        numbers=tuple(query.names),
        names=tuple(query.names.values()),
        counts=[len(each.clients) for each in query.queries],
        clients=[client for each in query.queries for client in each.clients],
        weights=[weight for each in query.queries for weight in each.weights.tolist()],
        scalars=scalars,
        values=[float(each.scalars[name]) for each in query.queries for name in scalars],
        vectors=sorted(first.vectors),
        iterates=iterates,
        steps=[each.iterates[name] for each in query.queries for name in iterates],
        sends=first.sends,
        outputs=query.num_outputs,
        training=query.training,
        saved=query.saved,
        sums=query.partial_sums,
        pair=query.pair,
        largest=-1 if query.largest is None else query.largest,
    )
    with_arrays(content, "params", params=torch.stack([each.params for each in query.queries]))
    if first.vectors:
        stacked = {name: torch.stack([each.vectors[name] for each in query.queries]) for name in first.vectors}
        with_arrays(content, "vectors", **stacked)
    return content if query.cost_matrix is None else with_arrays(content, "cost_matrix", matrix=query.cost_matrix)


def num_outputs(content: RecordDict) -> int:
    """Return the outputs of a query's model, limited by the message's size.

    A node builds the model before it reads the parameters.
    """
    sent = content.get("params")
    size = sum(len(array.data) for array in sent.values()) if isinstance(sent, ArrayRecord) else 0
    return Reader(content, "query").one("outputs", int, 1, size // 4)


def read_query(content: RecordDict, like: Tensor) -> NodeQuery:
    """Return what :func:`encode_query` wrote, with ``like`` in place of all arrays: no array is read."""
    read = Reader(content, "query")
    kind, number = read.one("kind", str), read.one("round", int, 0, LARGEST)
    if kind not in ("train", "loss"):
        raise WireError(f"kind={short(kind)} must be 'train' or 'loss'")
    runs = read.many("runs", int, None, 0, LARGEST)
    if not runs or len(set(runs)) != len(runs):
        raise WireError(f"runs={short(runs)} must be one or more different numbers")
    numbers = read.many("numbers", int, None, 0, LARGEST)
    names = dict(zip(numbers, read.many("names", str, len(numbers)), strict=True))
    if len(names) != len(numbers) or len(set(names.values())) != len(numbers):
        raise WireError(f"numbers={short(numbers)} and names={short(list(names.values()))} must all differ")
    scalars, vectors, iterates, sends = map(read.names, ("scalars", "vectors", "iterates", "sends"))
    for name, listed in (("vectors", vectors), ("iterates and sends", (*iterates, *sends))):
        if PARAMS in listed or len(set(listed)) != len(listed):
            raise WireError(f"{name}={short(listed)} must be different names other than {PARAMS!r}")
    check_arrays(content, "params", (PARAMS,))
    check_arrays(content, "vectors", vectors)
    counts = read.many("counts", int, len(runs), 1, len(names))
    clients = read.many("clients", int, sum(counts))
    weights = read.many("weights", float, sum(counts), 0.0)
    values = read.many("values", float, len(runs) * len(scalars))
    steps = read.many("steps", int, len(runs) * len(iterates), 1, LARGEST)
    seeds = read.many("seeds", int, len(runs), 0, LARGEST)
    queries: list[Query] = []
    begin = 0
    for index, size in enumerate(counts):
        asked = tuple(clients[begin : begin + size])
        if not set(asked) <= names.keys() or len(set(asked)) != size:
            raise WireError(f"clients={short(asked)} must be different clients among {short(sorted(names))}")
        query = Query(
            kind,
            number,
            seeds[index],
            asked,
            torch.tensor(weights[begin : begin + size], dtype=torch.float64),
            like,
            share(scalars, values, index),
            dict.fromkeys(vectors, like),
            share(iterates, steps, index),
            sends,
        )
        queries.append(query)
        begin += size
    return NodeQuery(
        read.one("entry", str),
        tuple(runs),
        tuple(queries),
        names,
        num_outputs(content),
        read.one("training", str),
        read.one("saved", int, -1, LARGEST),
        read.one("sums", bool),
        read.one("pair", bool),
        None if (largest := read.one("largest", int, -1, 10**9)) < 0 else largest,
    )


def decode_query(content: RecordDict, like: Tensor) -> NodeQuery:
    """Return what :func:`encode_query` wrote, for a model with parameters ``like`` these."""
    query = read_query(content, like)
    sent = [("params", PARAMS), *(("vectors", name) for name in query.queries[0].vectors)]
    shape = (len(query.runs), *like.shape)
    arrays = {name: finite(name, read_array(content, record, name, shape, like.dtype)) for record, name in sent}
    rows = ({name: array[index].to(like.device) for name, array in arrays.items()} for index in range(len(query.runs)))
    queries = (
        replace(each, params=row.pop(PARAMS), vectors=row) for each, row in zip(query.queries, rows, strict=True)
    )
    return replace(query, queries=tuple(queries))


def _read_numbers(content: RecordDict, count: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the metrics of a reply, one number per client and run each; they may be non-finite."""
    record = content.get("numbers")
    values = dict(record) if isinstance(record, MetricRecord) else {}
    if set(values) != set(NUMBERS):
        raise WireError(f"numbers contains {short(sorted(values))}, expected {short(sorted(NUMBERS))}")
    for name, each in values.items():
        if not isinstance(each, list) or len(each) != count or not all(isinstance(value, float) for value in each):
            raise WireError(f"{name} must be a list of {count} numbers, got {short(each)}")
    return {name: torch.tensor(values[name], dtype=torch.float64).to(dtype) for name in NUMBERS}


def share(names: Sequence[str], values: Sequence[T], index: int) -> dict[str, T]:
    """Return one run's values by name."""
    return dict(zip(names, values[index * len(names) : (index + 1) * len(names)], strict=True))


def encode_replies(query: NodeQuery, replies: Sequence[Replies]) -> RecordDict:
    """Return a message with one row per client; with partial sums, one finite weighted mean per run."""
    if query.partial_sums:
        replies = [_averaged(each, reply) for each, reply in zip(query.queries, replies, strict=True)]
    content = config_only("reply")
    content["numbers"] = MetricRecord(
        {name: [float(value) for reply in replies for value in getattr(reply, name)] for name in NUMBERS}
    )
    vectors = {name: torch.cat([reply.vectors[name] for reply in replies]) for name in query.queries[0].wanted}
    return with_arrays(content, "vectors", **vectors) if vectors else content


def decode_replies(content: RecordDict, query: NodeQuery) -> list[list[Reply]]:
    """Return one reply per client and run; values may be non-finite, a fault of one client and not the node."""
    Reader(content, "reply")  # rejects a message of another version
    sizes, first = [len(each.clients) for each in query.queries], query.queries[0]
    rows = [1] * len(sizes) if query.partial_sums else sizes
    numbers = _read_numbers(content, sum(sizes), first.params.dtype)
    shape = (sum(rows), *first.params.shape)
    arrays = read_arrays(content, "vectors", first.wanted, shape, first.params.dtype)
    loss, cost = (numbers[name].split(sizes) for name in NUMBERS)
    vectors = {
        name: [block.expand(size, -1) for block, size in zip(whole.split(rows), sizes, strict=True)]
        for name, whole in arrays.items()
    }
    return [
        split(Replies(each.clients, loss[i], cost[i], {name: blocks[i] for name, blocks in vectors.items()}))
        for i, each in enumerate(query.queries)
    ]


def arrays(**tensors: Tensor) -> ArrayRecord:
    """Return a record of these tensors as arrays with the same byte order on every machine."""
    values = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    little = {name: np.ascontiguousarray(value, value.dtype.newbyteorder("<")) for name, value in values.items()}
    return ArrayRecord({name: Array(value) for name, value in little.items()})


def config_only(record: str, /, **values: Any) -> RecordDict:
    """Return a message of plain values and their format, without empty lists and None; tuples become lists."""
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    filled = {name: value for name, value in listed.items() if value is not None and value != []}
    return RecordDict({record: ConfigRecord({"format": FORMAT, **filled})})


def with_arrays(content: RecordDict, record: str, **tensors: Tensor) -> RecordDict:
    """Add a record with these tensors to the message, and return it."""
    content[record] = arrays(**tensors)
    return content


def read_arrays(
    content: RecordDict, record: str, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return all arrays of a record, which must have exactly these names; see :func:`read_array`."""
    check_arrays(content, record, names)
    return {name: read_array(content, record, name, shape, dtype) for name in names}


def check_arrays(content: RecordDict, record: str, names: Sequence[str]) -> None:
    """Raise WireError if a record does not contain exactly these arrays."""
    sent = content.get(record)
    keys = set(sent) if isinstance(sent, ArrayRecord) else set[str]()
    if keys != set(names):
        raise WireError(f"{record} contains the arrays {short(sorted(keys))}, expected {short(sorted(names))}")


def read_array(content: RecordDict, record: str, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an array of exactly this shape, type and size; its header is checked before any allocation."""
    sent = content.get(record)
    array = sent.get(name) if isinstance(sent, ArrayRecord) else None
    if array is None:
        raise WireError(f"there is no array {record}.{name}")
    if dtype not in DTYPES:
        raise WireError(f"parameters of type {dtype} cannot travel: give the model float32 or float64 parameters")
    expected = DTYPES[dtype]
    if array.stype != SType.NUMPY or array.dtype != expected or tuple(array.shape) != shape:
        raise WireError(
            f"{name} is {short(array.dtype)} of shape {short(tuple(array.shape))} ({short(array.stype)}), expected "
            f"{expected} of {shape}"
        )
    size, little = math.prod(shape) * dtype.itemsize, np.dtype(expected).newbyteorder("<")
    begin = _header(array.data[:HEADER], shape, little)
    if begin is None or len(array.data) != begin + size:
        raise WireError(f"{name} takes {len(array.data)} bytes, expected a header and {size}")
    values = np.frombuffer(array.data, little, offset=begin).astype(expected)
    return torch.from_numpy(values).view(shape)


def read_doubles(content: RecordDict, record: str, name: str, shape: tuple[int, ...]) -> Tensor:
    """Read a finite array in double precision."""
    return finite(name, read_array(content, record, name, shape, torch.float64))


def _header(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int | None:
    """Return the position of the numbers after a valid header, a dict of literals that is never executed, or None."""
    stream = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            return None
        header = np.lib.format.read_array_header_1_0(stream)
    except Exception:  # unknown bytes may raise any error
        return None
    return stream.tell() if header == (shape, False, dtype) else None


def finite(name: str, values: Tensor) -> Tensor:
    """Return the values; raise WireError if one is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise WireError(f"{name} contains NaN or infinity")
    return values


class Reader:
    """The plain values of a message.

    Errors name the first value that is missing, has the wrong type or is out of range. A message of a different version
    raises an error before anything else is read, unless it is a refusal.
    """

    def __init__(self, content: RecordDict, record: str) -> None:
        values = content.get(record)
        if not isinstance(values, ConfigRecord):
            raise WireError(f"there is no record {record!r}")
        self._values = values
        if record == "refused":
            return
        number = self.one("format", int, 0, LARGEST) if self.has("format") else "none"
        if number != FORMAT:
            sender, reader = ("server", "node") if record == "query" else ("node", "server")
            raise WireError(
                f"the {sender}'s messages have format {number}, this {reader}'s wafl-learn {version('wafl-learn')} has "
                f"format {FORMAT}: install the same version of wafl-learn on the server and on every node"
            )

    def has(self, name: str) -> bool:
        """Return whether the message has this value."""
        return name in self._values

    def one(self, name: str, kind: type[T], low: float | None = None, high: float | None = None) -> T:
        """Return one value of this type and range."""
        return self._checked(name, self._values.get(name), kind, low, high)

    def many(
        self, name: str, kind: type[T], count: int | None = None, low: float | None = None, high: float | None = None
    ) -> list[T]:
        """Return a list of values of this type and range."""
        values = self._values.get(name, [])
        if not isinstance(values, list) or (count is not None and len(values) != count):
            wanted = "values" if count is None else f"{count} values"
            raise WireError(f"{name} must be a list of {wanted}, got {short(values)}")
        return [self._checked(name, value, kind, low, high) for value in values]

    def different(self, name: str) -> tuple[str, ...]:
        """Return a list of strings that are all different."""
        values = self.many(name, str)
        if len(set(values)) != len(values):
            raise WireError(f"{name}={short(values)} must all differ")
        return tuple(values)

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of different, nonempty strings."""
        values = self.different(name)
        if "" in values:
            raise WireError(f"{name}={short(values)} must not have an empty name")
        return values

    @staticmethod
    def _checked(name: str, value: Any, kind: type[T], low: float | None, high: float | None) -> T:
        if type(value) is not kind:
            raise WireError(f"{name}={short(value)} must be of type {kind.__name__}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise WireError(f"{name}={value} must be finite")
            if (low is not None and value < low) or (high is not None and value > high):
                raise WireError(f"{name}={value} must lie in [{low}, {high}]")
        return cast(T, value)


def _averaged(query: Query, replies: Replies) -> Replies:
    if not replies.vectors:
        return replies
    sound = torch.stack([torch.isfinite(vector).all(1) for vector in replies.vectors.values()]).all(0)
    sound &= torch.isfinite(replies.loss) & torch.isfinite(replies.cost)
    weights = torch.where(sound.cpu(), query.weights, 0.0)
    if not float(weights.sum()) > 0:
        weights = sound.cpu().double()
    weights = weights / weights.sum().clamp_min(1e-300)

    def mean(vector: Tensor) -> Tensor:
        return (weights.to(vector) @ torch.where(sound[:, None], vector, 0.0))[None]

    loss = torch.where(sound, replies.loss, torch.nan)  # which tells the server to leave these clients out
    return replace(replies, loss=loss, vectors={name: mean(vector) for name, vector in replies.vectors.items()})


def short(value: Any) -> str:
    """Return a value as text, cut off if it is long."""
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."
