"""Answer queries on a node: clients' work, tests and surveys. The list of all queries is here."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import cast

import torch
from flwr.app import RecordDict
from torch import Tensor

from wafl.base.describe import some
from wafl.base.norms import check_norm
from wafl.flower.node.examples import cuts, means, spread
from wafl.flower.node.hello import Hello
from wafl.flower.node.limits import MIN_EXAMPLES
from wafl.flower.node.next_client import next_client
from wafl.flower.node.personalize import personalize
from wafl.flower.node.refusals import refused
from wafl.flower.node.work import SPLITS, Node, Split, Tested
from wafl.flower.wire.logs import log
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
    read_doubles,
    read_query,
    share,
    short,
    with_arrays,
)
from wafl.objectives.ball.cost_matrix import CostMatrix
from wafl.tasks.task import Task
from wafl.theory.certificates.sampling import Moments
from wafl.theory.certificates.upper import REPORTS, Report
from wafl.theory.constants.assumptions import computes_its_graph, task_of
from wafl.train.class_means import output_shape
from wafl.train.spec import Spec
from wafl.train.survey import Survey, SurveyReplies

MOST_SETTINGS = 10_000
"""The maximum number of settings of the objective in one survey."""


def hello(node: Node, content: RecordDict) -> RecordDict:
    """Reply with this node's clients and the required sizes of a model; add the clients' sizes if requested."""
    clients, rows, small = node.site.federation, node.site.rows, too_small(node)
    if small:
        log(WARNING, "%s", small)
    if not rows:
        raise WireError(small)
    with_sizes = Reader(content, "query").one("sizes", bool)
    numbers, tests = node.site.numbers, clients.test.num_examples
    return Hello(
        tuple(rows),
        None if numbers is None else tuple(numbers[name] for name in rows),
        tuple(map(node.site.size, rows)) if with_sizes else None,
        tuple(name for name, row in rows.items() if int(tests[row]) > 0 and node.private is None),
        clients.input_shape,
        clients.num_classes or 0,
        clients.num_outputs,
        clients.unit,
        clients.bounds,
        node.name,
        clients.classes or (),
        tuple(node.site.small),
        "" if node.private is None else node.private.words,
    ).encode()


def too_small(node: Node) -> str:
    """Describe the clients of a node that have too few examples to take part, or return an empty string."""
    small, least = node.site.small, node.limits.min_examples
    if not small:
        return ""
    return (
        f"{some(list(small))} have fewer than {least} training examples and take no part: their operator admits them "
        f"with {MIN_EXAMPLES}={min(small.values())} in --node-config, or --{MIN_EXAMPLES} of `wafl flower node`"
    )


def work(node: Node, content: RecordDict) -> RecordDict:
    """Reply with trained models, lines 3 to 8 of the paper's Algorithm 1, or with the losses at given parameters."""
    task, start = node.task(num_outputs(content))
    spec = _with_shape(node.check(read_query(content, start), start), node, content, task, start)
    query = decode_query(content, start)
    return encode_replies(query, node.answer(query, spec, task))


def _with_shape(spec: Spec, node: Node, content: RecordDict, task: Task, start: Tensor) -> Spec:
    """Return the spec with the cost matrix in the query, if its method takes the matrix from the clients."""
    if not spec.asks_cost_matrix:
        return spec
    shape, layer = node.site.federation.input_shape, spec.layer
    features = math.prod(shape if layer is None else output_shape(layer, task, start, shape))
    matrix = finite("cost_matrix", read_array(content, "cost_matrix", "matrix", (features, features), torch.float64))
    try:
        return spec.with_cost_matrix(CostMatrix(matrix))
    except ValueError as error:
        raise WireError(str(error)) from error


def _split(read: Reader, default: Split, choices: Sequence[Split] = SPLITS) -> Split:
    """Return the split that a query names, or the default."""
    split = read.one("part", str) if read.has("part") else default
    if split not in choices:
        raise WireError(f"part={short(split)} must be one of {', '.join(choices)}")
    return cast(Split, split)


def _params(content: RecordDict, like: Tensor) -> Tensor:
    """Read a query's parameters; they must be finite and have the shape and type of ``like``."""
    sent = read_arrays(content, "params", ("params",), tuple(like.shape), like.dtype)
    return finite("params", sent["params"]).to(like.device)


@dataclass(frozen=True)
class TestQuery:
    """A query to test the model at ``params`` on these clients' examples; with ``attacked``, under attack as well.

    If some clients take no part in training, ``split`` may request training examples, or all of a client's examples.
    """

    names: tuple[str, ...]
    attacked: bool
    params: Tensor
    num_outputs: int
    seed: int
    split: Split = "test"

    def encode(self) -> RecordDict:
        """Return the message."""
        about = {"names": self.names, "attacked": self.attacked, "outputs": self.num_outputs, "seed": self.seed}
        content = config_only("query", **about, part=None if self.split == "test" else self.split)
        return with_arrays(content, "params", params=self.params)

    def read(self, reply: RecordDict) -> list[tuple[Tested, Tested]]:
        """Return each client's clean and attacked test."""
        count, read = len(self.names), Reader(reply, "reply")
        sizes = read.many("sizes", int, count, 1, LARGEST)
        losses, right = read.many("losses", float, 2 * count, 0.0), read.many("right", float, None, 0.0, 1.0)
        if right and len(right) != 2 * count:
            raise WireError(f"right has {len(right)} values: {count} clients, clean and attacked, have {2 * count}")
        tests = [Tested(sizes[i % count], losses[i], right[i] if right else None) for i in range(2 * count)]
        return list(zip(tests[:count], tests[count:], strict=True))


def test(node: Node, content: RecordDict) -> RecordDict:
    """Reply with each client's size, mean loss and accuracy: the clean tests of all clients, then the attacked ones."""
    read = Reader(content, "query")
    task, start = node.task(num_outputs(content))
    names, seed = read.different("names"), read.one("seed", int, 0, LARGEST)
    params, split = _params(content, start), _split(read, "test")
    clean = node.test(names, params, task, seed, split, attacked=False)
    under_attack = read.one("attacked", bool)
    tests = [*clean, *(node.test(names, params, task, seed, split, attacked=True) if under_attack else clean)]
    return config_only(
        "reply",
        sizes=[each.num_examples for each in clean],
        losses=[each.loss for each in tests],
        right=[each.accuracy for each in tests if each.accuracy is not None],
    )


@dataclass(frozen=True)
class SurveyQuery:
    """A query for the mean loss at ``params`` in double precision; with ``report``, for the mean bound on phi_gamma.

    With ``Moments``, the second moment replaces the cost, and clients also report their sizes.
    """

    names: tuple[str, ...]
    params: Tensor
    num_outputs: int
    settings: Sequence[Mapping[str, float]]
    report: Report | Moments | None
    seed: int
    split: Split = "train"

    def encode(self) -> RecordDict:
        """Return the message."""
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
            part=None if self.split == "train" else self.split,
            moments=isinstance(self.report, Moments) or None,
        )
        return with_arrays(content, "params", params=self.params)

    def read(self, reply: RecordDict) -> SurveyReplies:
        """Return the survey's replies."""
        shape = (len(self.settings), len(self.names))
        value, cost = (read_doubles(reply, "numbers", name, shape) for name in ("value", "cost"))
        if not isinstance(self.report, Moments):
            return SurveyReplies(value, cost)
        sizes = Reader(reply, "reply").many("sizes", int, len(self.names), 1, LARGEST)
        return SurveyReplies(value, cost, tuple(sizes))


def survey(node: Node, content: RecordDict) -> RecordDict:
    """Reply with each client's mean loss, or with the value and cost of a bound on phi_gamma, in each setting."""
    read = Reader(content, "query")
    task, start = task_of(node.model(num_outputs(content)), node.experiment.model.loss)
    node.check_model(task, start, num_outputs(content))
    names, seed = read.different("names"), read.one("seed", int, 0, LARGEST)
    objective = _report(read, linear=task.linear(start[None]) is not None) if read.has("report") else None
    if read.has("moments") and read.one("moments", bool):
        objective = Moments(objective)
    split = _split(read, "train", ("train", "test"))
    scalars, wanted = read.names("scalars"), [] if objective is None else sorted(objective.scalars())
    if sorted(scalars) != wanted:
        raise WireError(f"scalars={short(scalars)} must be {wanted}")
    count = read.one("count", int, 1, MOST_SETTINGS if scalars else 1)
    values = read.many("values", float, count * len(scalars), 0.0)
    settings = [share(scalars, values, index) for index in range(count)]
    params, examples = _params(content, start), node.surveyed(names, split, count)
    replies = Survey(task, params, examples, objective).ask(settings, seed)
    reply = config_only("reply", count=count, sizes=replies.sizes if isinstance(objective, Moments) else None)
    return with_arrays(reply, "numbers", value=replies.value, cost=replies.cost)


@dataclass(frozen=True)
class GraphQuery:
    """A query that asks whether the model at ``params`` and its graph of layers agree on all examples of clients.

    ``params`` are the model's own parameters, from which its graph may compute other weights.
    """

    names: tuple[str, ...]
    params: Tensor
    num_outputs: int

    def encode(self) -> RecordDict:
        """Return the message."""
        content = config_only("query", names=self.names, outputs=self.num_outputs)
        return with_arrays(content, "params", params=self.params)

    def read(self, reply: RecordDict) -> bool:
        """Return whether model and graph agree."""
        return Reader(reply, "reply").one("same", bool)


def graph(node: Node, content: RecordDict) -> RecordDict:
    """Reply whether the model and its graph have the same outputs on the training and test examples of the clients."""
    task, start = task_of(node.model(num_outputs(content)), node.experiment.model.loss, traced=False)
    node.check_model(task, start, num_outputs(content))
    params, clients = _params(content, start), node.site.federation
    rows = node.asked(Reader(content, "query").different("names"))
    examples = clients.examples.of_clients(rows)
    return config_only("reply", same=computes_its_graph(task, params, examples))


def _report(read: Reader, *, linear: bool) -> Report:
    """Read the requested bound, in addition to the loss."""
    name, norm = read.one("report", str), float(read.one("norm", str))
    check_norm(norm)
    if name not in REPORTS or (name == "error" and not linear):
        raise WireError(f"report={name!r} must be one of {', '.join(REPORTS if linear else ('smooth', 'linear'))}")
    return REPORTS[name](norm)


HANDLERS: dict[str, Callable[[Node, RecordDict], RecordDict]] = {
    "query.hello": hello,
    "train": work,
    "evaluate": work,
    "evaluate.test": test,
    "query.survey": survey,
    "query.graph": graph,
    "query.cuts": cuts,
    "query.means": means,
    "query.spread": spread,
    "query.next_client": next_client,
    "query.personalize": personalize,
}
"""The function that answers each type of message."""
TASKS = {
    "query.survey": "certify",
    "query.graph": "certify",
    "query.cuts": "mixture",
    "query.next_client": "next-client",
    "query.personalize": "personalize",
}
"""The task of a type of message, if it is not training."""


def answer(kind: str, node: Callable[[], Node], content: RecordDict) -> RecordDict:
    """Return the node's reply, or a refusal with a code and a safe sentence if the node cannot or must not reply."""
    try:
        opened = node()
    except Exception as error:  # whatever the error is, the server must be told
        return refused(error, setup=True)
    try:
        if opened.private is not None:
            opened.private.check_kind(kind)
        if kind != "query.hello":
            opened.check_task(TASKS.get(kind, "train"))
        return HANDLERS[kind](opened, content)
    except Exception as error:
        return refused(error)
