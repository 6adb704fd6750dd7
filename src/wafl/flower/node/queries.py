"""What a node can be asked, and how it replies: clients' work, tests, surveys, cuts, class means, spread."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from flwr.app import RecordDict
from torch import Tensor

from wafl.base.norms import check_norm
from wafl.flower.node.hello import Hello
from wafl.flower.node.means import means, with_shape
from wafl.flower.node.refusals import SetupError, refused
from wafl.flower.node.spread import spread
from wafl.flower.node.work import PARTS, Node, Part, Tested
from wafl.flower.wire.values import (
    LARGEST,
    Reader,
    WireError,
    config_only,
    decode_query,
    encode_replies,
    finite,
    num_outputs,
    read_array,
    read_arrays,
    read_outline,
    share,
    short,
    with_arrays,
)
from wafl.theory.certificates.sampling import Moments
from wafl.theory.certificates.upper import REPORTS, Report
from wafl.theory.constants.assumptions import task_of
from wafl.train.survey import SurveyReplies
from wafl.weights.transport import exchange
from wafl.weights.transport.clouds import Sampling, read_client

MOST_SETTINGS = 10_000
"""The most settings of the objective in one survey."""


def hello(node: Node, content: RecordDict) -> RecordDict:
    """The reply of which clients this node holds and what a model for them must take; their sizes only if asked for."""
    clients, rows = node.site.federation, node.site.rows
    with_sizes = Reader(content, "query").one("sizes", bool)
    numbers, sizes, tests = node.site.numbers, clients.train.num_examples, clients.test.num_examples
    return Hello(
        tuple(rows),
        None if numbers is None else tuple(numbers[name] for name in rows),
        tuple(int(sizes[row]) for row in rows.values()) if with_sizes else None,
        tuple(name for name, row in rows.items() if int(tests[row]) > 0),
        clients.input_shape,
        clients.num_classes or 0,
        clients.num_outputs,
        clients.unit,
        clients.bounds,
        node.name,
        clients.classes or (),
    ).encode()


def work(node: Node, content: RecordDict) -> RecordDict:
    """The replies of a training, lines 3 to 8 of the paper's Algorithm 1, or the losses at given parameters."""
    outline = read_outline(content)
    task, start = node.task(num_outputs(content))
    spec = with_shape(node.check(outline, start), node, content)
    query = decode_query(content, start)
    return encode_replies(query, node.answer(query, spec, task))


def _part(read: Reader, usual: Part, known: Sequence[Part] = PARTS) -> Part:
    """Which of the clients' examples a query is about: the ``usual`` ones, unless it names another ``known`` part."""
    part = read.one("part", str) if read.has("part") else usual
    if part not in known:
        raise WireError(f"part={short(part)} must be one of {', '.join(known)}")
    return cast(Part, part)


def _params(content: RecordDict, like: Tensor) -> Tensor:
    """The parameters that a query brings, checked to be finite and to have the shape and type of ``like``."""
    sent = read_arrays(content, "params", ("params",), tuple(like.shape), like.dtype)
    return finite("params", sent["params"]).to(like.device)


@dataclass(frozen=True)
class TestQuery:
    """A query to test the model at ``params`` on these clients' test examples; with ``attacked``, under attack as well.

    If some clients never train, ``part`` may ask for training examples, or for all of a client's examples.
    """

    names: tuple[str, ...]
    attacked: bool
    params: Tensor
    num_outputs: int
    seed: int
    part: Part = "test"

    def encode(self) -> RecordDict:
        about = {"names": self.names, "attacked": self.attacked, "outputs": self.num_outputs, "seed": self.seed}
        content = config_only("query", **about, part=None if self.part == "test" else self.part)
        return with_arrays(content, "params", params=self.params)

    def read(self, reply: RecordDict) -> list[tuple[Tested, Tested]]:
        """Each client's clean and attacked test."""
        count, read = len(self.names), Reader(reply, "reply")
        sizes = read.many("sizes", int, count, 1, LARGEST)
        losses, right = read.many("losses", float, 2 * count, 0.0), read.many("right", float, None, 0.0, 1.0)
        if right and len(right) != 2 * count:
            raise WireError(f"right has {len(right)} values: {count} clients, clean and attacked, have {2 * count}")
        found = [Tested(sizes[i % count], losses[i], right[i] if right else None) for i in range(2 * count)]
        return list(zip(found[:count], found[count:], strict=True))


def test(node: Node, content: RecordDict) -> RecordDict:
    """Each client's number of examples, and its mean losses and accuracies: all clean ones, then all attacked ones."""
    read = Reader(content, "query")
    task, start = node.task(num_outputs(content))
    names, seed = read.different("names"), read.one("seed", int, 0, LARGEST)
    params, part = _params(content, start), _part(read, "test")
    clean = node.test(names, params, task, seed, attacked=False, part=part)
    under_attack = read.one("attacked", bool)
    found = [*clean, *(node.test(names, params, task, seed, attacked=True, part=part) if under_attack else clean)]
    return config_only(
        "reply",
        sizes=[each.num_examples for each in clean],
        losses=[each.loss for each in found],
        right=[each.accuracy for each in found if each.accuracy is not None],
    )


@dataclass(frozen=True)
class SurveyQuery:
    """A query for the mean loss at ``params`` in double precision; with ``report``, for that of a bound on phi_gamma.

    With ``Moments``, the second moment takes the place of the cost, and clients say how many examples they have.
    """

    names: tuple[str, ...]
    params: Tensor
    num_outputs: int
    settings: Sequence[Mapping[str, float]]
    report: Report | Moments | None
    seed: int
    part: Part = "train"

    def encode(self) -> RecordDict:
        moments = isinstance(self.report, Moments)
        bound = self.report.bound if isinstance(self.report, Moments) else self.report
        scalars = sorted(self.settings[0])
        content = config_only(
            "query",
            names=self.names,
            outputs=self.num_outputs,
            seed=self.seed,
            count=len(self.settings),
            scalars=scalars,
            values=[float(each[name]) for each in self.settings for name in scalars],
            norm=None if bound is None else str(bound.norm),
            report=next((name for name, kind in REPORTS.items() if type(bound) is kind), None),
            part=None if self.part == "train" else self.part,
            moments=moments or None,
        )
        return with_arrays(content, "params", params=self.params)

    def read(self, reply: RecordDict) -> SurveyReplies:
        shape = (len(self.settings), len(self.names))
        value, cost = (
            finite(name, read_array(reply, "numbers", name, shape, torch.float64)) for name in ("value", "cost")
        )
        if not isinstance(self.report, Moments):
            return SurveyReplies(value, cost)
        sizes = Reader(reply, "reply").many("sizes", int, len(self.names), 1, LARGEST)
        return SurveyReplies(value, cost, tuple(sizes))


def survey(node: Node, content: RecordDict) -> RecordDict:
    """The mean loss of each client, or the value and cost of a bound on phi_gamma, in each setting."""
    read = Reader(content, "query")
    task, start = task_of(node.model(num_outputs(content)), node.experiment.model.loss)
    node.check_model(task, start, num_outputs(content))
    names, seed = read.different("names"), read.one("seed", int, 0, LARGEST)
    objective = _report(read, linear=task.linear(start[None]) is not None) if read.has("report") else None
    if read.has("moments") and read.one("moments", bool):
        objective = Moments(objective)
    part = _part(read, "train", ("train", "test"))
    scalars, wanted = read.names("scalars"), [] if objective is None else sorted(objective.scalars())
    if sorted(scalars) != wanted:
        raise WireError(f"scalars={short(scalars)} must be {wanted}")
    count = read.one("count", int, 1, MOST_SETTINGS if scalars else 1)
    values = read.many("values", float, count * len(scalars), 0.0)
    settings = [share(scalars, values, place) for place in range(count)]
    found = node.survey(names, _params(content, start), task, objective, settings, seed, part=part)
    reply = config_only("reply", count=count, sizes=found.sizes if isinstance(objective, Moments) else None)
    return with_arrays(reply, "numbers", value=found.value, cost=found.cost)


def _report(read: Reader, *, linear: bool) -> Report:
    """What the query asks for in addition to the loss."""
    name, norm = read.one("report", str), float(read.one("norm", str))
    check_norm(norm)
    if name not in REPORTS or (name == "error" and not linear):
        raise WireError(f"report={name!r} must be one of {', '.join(REPORTS if linear else ('smooth', 'linear'))}")
    return REPORTS[name](norm)


@dataclass(frozen=True)
class CutsQuery:
    """A query for each client's cut: how at most ``points`` of its examples spread over the target, for potentials g.

    ``numbers`` are the clients' places among all clients; they and the seed decide which examples are drawn.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    target: Tensor
    g: Tensor
    points: int
    seed: int

    def encode(self) -> RecordDict:
        drawn = {"names": self.names, "numbers": self.numbers, "points": self.points, "seed": self.seed}
        content = config_only("query", **drawn, count=len(self.g))
        return with_arrays(content, "params", target=self.target, g=self.g)

    def read(self, reply: RecordDict) -> tuple[Tensor, Tensor]:
        clients = len(self.names)
        means = finite("means", read_array(reply, "numbers", "means", (clients,), torch.float64))
        shares = finite("shares", read_array(reply, "numbers", "shares", (clients, len(self.g)), torch.float64))
        if bool((shares < 0).any()) or not torch.allclose(shares.sum(1), torch.ones_like(means)):
            raise WireError("shares must be at least 0 and sum to 1 for each client")
        return means, shares


def cuts(node: Node, content: RecordDict) -> RecordDict:
    """The cut of each client: the mean of its potential, and how its examples spread over the target."""
    read = Reader(content, "query")
    count, names = read.one("count", int, 1, exchange.MOST_POINTS), read.different("names")
    numbers = read.many("numbers", int, len(names), 0, LARGEST)
    sampling = Sampling(read.one("points", int, 1, 10**6), read.one("seed", int, 0, LARGEST))
    rows, train = node.rows(dict(enumerate(names))), node.site.federation.train
    drawn = [read_client(train.of(rows[place]), number, sampling).x for place, number in enumerate(numbers)]
    shape = (count, math.prod(node.site.federation.input_shape))
    target = finite("target", read_array(content, "params", "target", shape, torch.float64))
    g = finite("g", read_array(content, "params", "g", (count,), torch.float64))
    means, shares = exchange.cuts(drawn, target, g)
    return with_arrays(config_only("reply"), "numbers", means=means, shares=shares)


HANDLERS: dict[str, Callable[[Node, RecordDict], RecordDict]] = {
    "query.hello": hello,
    "train": work,
    "evaluate": work,
    "evaluate.test": test,
    "query.survey": survey,
    "query.cuts": cuts,
    "query.means": means,
    "query.spread": spread,
}
"""What answers each type of message."""


def answer(kind: str, node: Callable[[], Node], content: RecordDict) -> RecordDict:
    """The node's reply; if it cannot or must not do what it is asked, a refusal with a code and a safe sentence."""
    try:
        try:
            opened = node()
        except WireError:
            raise
        except Exception as error:
            raise SetupError from error
        return HANDLERS[kind](opened, content)
    except Exception as error:  # whatever it is, the server must hear of it
        return refused(error)
