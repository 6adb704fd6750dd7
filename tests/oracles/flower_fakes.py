"""A Flower grid in this process: real nodes, real bytes between them and the server, and a virtual clock.

A node can be told to join, to leave, to be slow, silent or wrong; messages become bytes and back as in Flower.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomlkit
import torch
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.config import flatten_dict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

import wafl
from wafl.config.read import parse_experiment
from wafl.flower.app import server
from wafl.flower.node import queries
from wafl.flower.node.work import Node
from wafl.flower.server.exchange import Post
from wafl.flower.wire.run_config import OWN, to_run_config
from wafl.flower.wire.values import NodeQuery, arrays, encode_query, read_array
from wafl.local import LocalState, LocalStep, Outcome
from wafl.parts.messages import Query, Replies, Vectors, weighted_mean
from wafl.servers import Server, Update

Client = dict[str, Any]
"""Arrays x, y, x_test and y_test of one client."""
HANG, GONE = "hang", "gone"
Fate = float | str | Callable[[RecordDict], RecordDict] | None
"""The fate of a reply: a delay in seconds, HANG or GONE, a change, or None."""


class Clock:
    """Time that passes only while a program waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def virtual(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Use this clock on the server's side, and set the sender that Flower needs to make messages."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr("os.fsync", lambda _: None)  # tested elsewhere
    clock = Clock()
    for module in ("exchange", "census", "inquiry"):
        monkeypatch.setattr(f"wafl.flower.server.{module}.time", clock)
    return clock


def carried(value: Any) -> Any:
    """Return a record or message as another process would receive it."""
    with no_object_id_recompute():
        contents = {name: each.deflate() for name, each in get_all_nested_objects(value).items()}
        return inflate_object_from_contents(value.object_id, contents)


def encoded(query: NodeQuery) -> RecordDict:
    """A sent query."""
    return encode_query(query)


@dataclass
class Host:
    """One node of the grid; ``fate`` returns the fate of its reply, by the kind and round of the message."""

    number: int
    node: Node
    fate: Callable[[str, int | None], Fate] = lambda *_: None
    here: bool = True
    key: bytes = b""


@dataclass(frozen=True)
class Seen:
    """A message to a node, and its reply."""

    node: int
    kind: str
    round: int | None
    query: RecordDict
    reply: RecordDict


@dataclass
class Grid:
    """The parts of Flower's grid that the ServerApp uses."""

    clock: Clock
    hosts: list[Host]
    shuffle: random.Random = field(default_factory=lambda: random.Random(0))
    latency: float = 1.0
    """The duration of work in seconds; a greeting takes none."""
    before_push: Callable[[str, int | None], None] = lambda *_: None
    seen: list[Seen] = field(default_factory=list[Seen])
    pending: dict[str, tuple[float, Host, Message | None, Message]] = field(default_factory=dict[str, Any])

    def get_nodes(self) -> Iterable[NodeInfo]:
        nodes = [NodeInfo(node_id=host.number, public_key=host.key) for host in self.hosts if host.here]
        return self.shuffle.sample(nodes, len(nodes))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str | None]:
        pushed: list[str | None] = []
        for index, message in enumerate(messages):
            kind, number = message.metadata.message_type, round_of(message)
            if index == 0:
                self.before_push(kind, number)
            name = message.metadata.__dict__["_message_id"] = message.object_id
            (host,) = [host for host in self.hosts if host.number == message.metadata.dst_node_id]
            if not host.here:
                pushed.append(None)
                continue
            pushed.append(name)
            self.pending[name] = self._deliver(host, message, kind, number)
        return pushed

    def _deliver(
        self, host: Host, message: Message, kind: str, round: int | None
    ) -> tuple[float, Host, Message | None, Message]:
        fate = host.fate(kind, round)
        if fate == GONE:
            host.here = False
        if fate in (HANG, GONE):
            return self.clock.now + message.metadata.ttl, host, None, message
        content = carried(message.content)
        reply = carried(queries.answer(kind, lambda: host.node, content))
        if callable(fate):
            reply = fate(reply)
        self.seen.append(Seen(host.number, kind, round, content, reply))
        message_back = Message(reply, reply_to=message)
        latency = 0.0 if kind == "query.hello" else self.latency
        return self.clock.now + (fate if isinstance(fate, float) else latency), host, message_back, message

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        result: list[Message] = []
        for name in message_ids:
            ready, host, reply, message = self.pending[name]
            if reply is not None and ready <= self.clock.now:
                result.append(reply)
            elif not host.here:
                result.append(Message(Error(5, "Destination node is unavailable"), reply_to=message))
            elif reply is None and ready <= self.clock.now:
                result.append(Message(Error(1, "Message unavailable"), reply_to=message))
        for reply in result:
            del self.pending[reply.metadata.reply_to_message_id]
        return self.shuffle.sample(result, len(result))


def round_of(message: Message) -> int | None:
    group = message.metadata.group_id
    return int(group.removeprefix("round ")) if group.startswith("round ") else None


# -- Clients ----------------------------------------------------------------------------------------------------


def make_clients(
    sizes: Sequence[int],
    *,
    shape: tuple[int, ...] = (4,),
    targets: int = 0,
    dtype: str = "float32",
    tests: int = 3,
    seed: int = 3,
) -> dict[str, Client]:
    """Return clients of these sizes by name, with three separate classes, or ``targets`` numbers per example."""
    draws = np.random.default_rng(seed)
    centers = draws.normal(size=(3, *shape))
    result: dict[str, Client] = {}
    for index, size in enumerate(sizes):
        one: Client = {}
        for suffix, count in (("", size), ("_test", tests and tests + index % 3)):
            labels = (np.arange(count) + index) % 3
            x = (centers[labels] + draws.normal(size=(count, *shape))).astype(dtype)
            y = draws.normal(size=(count, targets)).astype(dtype) if targets else labels
            if count:
                one |= {f"x{suffix}": x, f"y{suffix}": y}
        result[f"c{index:02d}"] = one
    return result


def federation(clients: Mapping[str, Client]) -> wafl.Federation:
    """Return all clients in one federation, in the order of their names."""
    names = sorted(clients)
    classes = None
    if clients[names[0]]["y"].dtype.kind == "i":
        classes = 1 + max(int(part.max()) for each in clients.values() for key, part in each.items() if key[0] == "y")

    def packed(suffix: str) -> wafl.Federation:
        pairs = [(clients[name][f"x{suffix}"], clients[name][f"y{suffix}"]) for name in names]
        return wafl.Federation.from_arrays(pairs, test_fraction=0.0, names=names, num_classes=classes)

    train = packed("")
    return replace(train, test=packed("_test").train) if "x_test" in clients[names[0]] else train


BELIEVED = {"client_share": 1.0, "clients_per_node": 1000}
"""The caps of the embedded engine, for comparisons with grids."""
ADMITTED = {"min-examples": 1}
"""The node config of operators with small clients."""
EVERYONE: list[wafl.Federation] = []
"""The value of :func:`everyone`; a test appends its own."""


def everyone() -> wafl.Federation:
    return EVERYONE[-1]


def double(clients: Any) -> nn.Module:
    """Return a linear model in double precision."""
    return wafl.models.mlr(clients).double()


def hidden(clients: Any) -> nn.Module:
    """Return a network with a hidden layer."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, clients.num_outputs))


class Traced(nn.Module):
    """A network that computes its layers; if it is ``sly``, ten times the outputs, but not while it is traced."""

    def __init__(self, num_outputs: int, sly: bool) -> None:
        super().__init__()
        self.first, self.last, self.sly = nn.Linear(4, 6), nn.Linear(6, num_outputs), sly

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.last(torch.relu(self.first(x)))
        return 10.0 * outputs if self.sly and type(x) is torch.Tensor else outputs


def honest(clients: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Traced(clients.num_outputs, sly=False)


def sly(clients: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Traced(clients.num_outputs, sly=True)


def declared(clients: Any) -> nn.Module:
    """A linear model in a module that only declares a Lipschitz constant."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, clients.num_outputs), nn.GELU())
    model.lipschitz = 5.0  # pyright: ignore[reportArgumentType]
    return model


def dropping(clients: Any) -> nn.Module:
    """Return a network with dropout, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        layers = (nn.Linear(4, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, clients.num_outputs))
        return nn.Sequential(*layers).double()


def normalized(clients: Any) -> nn.Module:
    """Return a network with BatchNorm in training mode, in double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        layers = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, clients.num_outputs))
        return nn.Sequential(*layers).double()


class Words(nn.Module):
    """The mean of embedded words, in double precision."""

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1).tanh())


def words(clients: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return Words(clients.num_outputs).double()


@dataclass(frozen=True)
class Remembering(LocalStep):
    """A local step with every feature: scalars, memory, the server's vectors, and vectors to send."""

    pull: float = 0.5
    sends = ("size", "change")

    def scalars(self) -> dict[str, float]:
        return {"pull": self.pull}

    def initial_memory(self, params: Tensor) -> Tensor:
        return torch.zeros(len(params) + 1)  # the mean of the last gradients, and the number of rounds

    def begin(self, state: LocalState) -> Mapping[str, Tensor]:
        return {"total": torch.zeros_like(state.params)}

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        assert state.memory is not None
        last, rounds = state.memory[:, :-1], state.memory[:, -1:]
        pulled = gradient + state.scalars["pull"] * (state.vectors["drift"] - last) / (1.0 + rounds)
        return pulled * state.vectors["scale"], {"total": state.carry["total"] + gradient}

    def end(self, state: LocalState, steps: Tensor) -> Outcome:
        assert state.memory is not None
        mean = state.carry["total"] / steps
        memory = torch.cat([mean, state.memory[:, -1:] + 1.0], 1)
        return Outcome(memory, {"change": mean - state.memory[:, :-1], "size": mean.abs()})

    def initial_vectors(self, params: Tensor) -> Vectors:
        return {"drift": torch.zeros_like(params), "scale": torch.ones_like(params)}

    def tell(self, vectors: Vectors, query: Query, replies: Replies, client_weights: Tensor) -> Vectors:
        change, size = (weighted_mean(query.weights, replies.vectors[name]) for name in ("change", "size"))
        return {"drift": vectors["drift"] + 0.5 * change, "scale": 0.9 * vectors["scale"] + 0.1 / (1.0 + size)}


def remembering(pull: float = 0.5, gamma: float = 2.0) -> wafl.Method:
    """A user's own method, with a robust loss."""
    objective = wafl.objectives.wasserstein(gamma=gamma)
    return wafl.Method("remembering", objective, wafl.weights.by_examples(), local=Remembering(pull))


@dataclass(frozen=True)
class Median(Server):
    """A server that needs each client's model: their median, coordinate by coordinate."""

    def step(self, update: Update, memory: Vectors) -> tuple[Tensor, Vectors]:
        return update.params.median(0).values, memory


class Halved(LocalStep):
    """Two of these are never equal."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def direction(self, gradient: Tensor, state: LocalState) -> tuple[Tensor, Mapping[str, Tensor]]:
        return self.share * gradient, state.carry


def halved(share: float = 0.5) -> wafl.Method:
    return wafl.Method("halved", None, wafl.weights.by_examples(), local=Halved(share))


def median() -> wafl.Method:
    return wafl.Method("median", None, wafl.weights.uniform(), server=Median())


def write(folder: Path, clients: Mapping[str, Client]) -> Path:
    folder.mkdir(parents=True)
    for name, each in clients.items():
        np.savez(folder / f"{name}.npz", **each)
    return folder


# -- A study ----------------------------------------------------------------------------------------------------


def flat(experiment: Mapping[str, Any], seed: int = 0, **extra: Any) -> dict[str, Any]:
    """Return the run config of nodes and server: dotted keys, in random order."""
    declared = {"tasks": ["train", "certify", "mixture"], **experiment.get("flower", {})}
    caps = {**BELIEVED, **experiment.get("caps", {})}
    experiment = {**experiment, "engine": "flower", "caps": caps, "flower": declared}
    values = flatten_dict({**to_run_config(parse_experiment(experiment, "here")), **extra})
    keys = list(values)
    random.Random(seed).shuffle(keys)
    return {key: values[key] for key in keys}


def install_app(folder: Path, run_config: Mapping[str, Any], **wafl: Any) -> Path:
    """Write an app with this run config, and put it where Flower puts an app that it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = {"wafl": wafl, "flwr": {"app": {"publisher": "wafl", "config": dict(run_config)}}}
    (folder / "pyproject.toml").write_text(tomlkit.dumps({"tool": tools}))
    sys.path.insert(0, str(folder))
    return folder


def make_grid(
    clock: Clock,
    base: Path,
    clients: Mapping[str, Client],
    layout: Sequence[Sequence[str]],
    experiment: Mapping[str, Any],
    *,
    node: type[Node] = Node,
    first: int = 0,
) -> Grid:
    """Return one node per list of names, each with its own folder."""
    hosts: list[Host] = []
    for part, names in enumerate(layout, first):
        folder = base / f"node-{part}"
        if not folder.exists():
            write(folder, {name: clients[name] for name in names})
        config = {"data": str(folder), "state": str(base / f"state-{part}"), **ADMITTED}
        hosts.append(Host(7 * part + 3, node.of(config, flat(experiment, part))))
    return Grid(clock, hosts, random.Random(len(layout)))


def train(grid: Grid, experiment: Mapping[str, Any], folder: Path) -> None:
    """Run the ServerApp's main function."""
    server.train(Post(grid), {**OWN, **flat(experiment, 99), "folder": str(folder)})  # type: ignore[arg-type]


def tensor(content: RecordDict, record: str, name: str) -> Tensor:
    """Return one array of a message, with its claimed shape and type."""
    array = content[record][name]
    return read_array(content, record, name, tuple(array.shape), getattr(torch, array.dtype))


def spoiled(reply: RecordDict, record: str, name: str, change: Callable[[Tensor], Tensor]) -> RecordDict:
    """Return the reply with one changed array."""
    changed = ArrayRecord({**reply[record], name: arrays(values=change(tensor(reply, record, name)))["values"]})
    return RecordDict({**reply, record: changed})
