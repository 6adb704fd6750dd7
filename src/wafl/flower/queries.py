"""Queries beside training, each with both its ends: a test, a survey for certificates, midpoints for distances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor

from wafl.engine.survey import Answers
from wafl.flower.node import Node, Tested
from wafl.flower.wire import LARGEST, Reader, arrays, config_only, read_array
from wafl.norms import check_norm
from wafl.theory.constants import task_of
from wafl.theory.upper import UpperBound
from wafl.transport.clouds import Sampling, read_client
from wafl.transport.private import Side


@dataclass(frozen=True)
class TestAsk:
    """Test these clients, some of them attacked, at ``params``."""

    names: tuple[str, ...]
    attacked: tuple[str, ...]
    params: Tensor
    num_outputs: int
    seed: int

    def encode(self) -> RecordDict:
        content = config_only(
            names=list(self.names), attacked=list(self.attacked), outputs=self.num_outputs, seed=self.seed
        )
        content["params"] = arrays(params=self.params)
        return content

    def read(self, reply: RecordDict) -> list[Tested]:
        count = len(self.names)
        sizes = Reader(reply, "ask").many("sizes", int, count, 1, LARGEST)
        losses = Reader(reply, "ask").many("losses", float, count)
        right = Reader(reply, "ask").many("right", float, None, 0.0, 1.0)
        return [Tested(sizes[i], losses[i], right[i] if right else None) for i in range(count)]


def test(node: Node, content: RecordDict) -> RecordDict:
    read = Reader(content, "ask")
    task, start = node.task(read.one("outputs", int, 1, 10**9))
    params = read_array(content, "params", "params", tuple(start.shape), start.dtype).to(start.device)
    found = node.test(
        read.many("names", str), read.many("attacked", str), params, task, read.one("seed", int, 0, LARGEST)
    )
    right = [each.accuracy for each in found if each.accuracy is not None]
    sizes, losses = [each.num_examples for each in found], [each.loss for each in found]
    return config_only(sizes=sizes, losses=losses, right=right)


@dataclass(frozen=True)
class SurveyAsk:
    """Report at ``params``, in double precision, the mean loss; with ``norm`` that of an upper bound of phi_gamma."""

    names: tuple[str, ...]
    params: Tensor
    num_outputs: int
    settings: Sequence[Mapping[str, float]]
    norm: float | None
    seed: int

    def encode(self) -> RecordDict:
        scalars = sorted(self.settings[0])
        content = config_only(
            names=list(self.names),
            outputs=self.num_outputs,
            seed=self.seed,
            count=len(self.settings),
            scalars=scalars,
            values=[float(each[name]) for each in self.settings for name in scalars],
            norm=None if self.norm is None else str(self.norm),
        )
        content["params"] = arrays(params=self.params)
        return content

    def read(self, reply: RecordDict) -> Answers:
        shape = (len(self.settings), len(self.names))
        value, cost = (read_array(reply, "numbers", name, shape, torch.float64) for name in ("value", "cost"))
        return Answers(value, cost)


def survey(node: Node, content: RecordDict) -> RecordDict:
    read = Reader(content, "ask")
    task, start = task_of(node.model(read.one("outputs", int, 1, 10**9)), node.experiment.model.loss)
    params = read_array(content, "params", "params", tuple(start.shape), start.dtype)
    count, scalars = read.one("count", int, 1, 10**6), read.many("scalars", str)
    values = read.many("values", float, count * len(scalars), 0.0)
    settings = [
        dict(zip(scalars, values[place * len(scalars) :], strict=False)) if scalars else {} for place in range(count)
    ]
    norm = float(read.one("norm", str)) if read.has("norm") else None
    if norm is not None:
        check_norm(norm)
    adversary = None if norm is None else UpperBound(norm)
    found = node.survey(read.many("names", str), params, task, adversary, settings, read.one("seed", int, 0, LARGEST))
    reply = config_only(count=count)
    reply["numbers"] = arrays(value=found.value, cost=found.cost)
    return reply


@dataclass(frozen=True)
class MidpointsAsk:
    """Carry each client's reference, ``[clients, points, dimension]``, to ``points`` examples of the client's own.

    ``numbers`` are the clients' places among all: which examples are drawn depends on them and on the seed.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    references: Tensor
    seed: int

    def encode(self) -> RecordDict:
        content = config_only(
            names=list(self.names), numbers=list(self.numbers), points=self.references.shape[1], seed=self.seed
        )
        content["params"] = arrays(references=self.references)
        return content

    def read(self, reply: RecordDict) -> list[tuple[Tensor, float]]:
        found = read_array(reply, "numbers", "midpoints", tuple(self.references.shape), torch.float64)
        lengths = Reader(reply, "ask").many("lengths", float, len(self.names), 0.0)
        return list(zip(found, lengths, strict=True))


def midpoints(node: Node, content: RecordDict) -> RecordDict:
    read, train = Reader(content, "ask"), node.site.federation.train
    names = read.many("names", str)
    numbers = read.many("numbers", int, len(names), 0, LARGEST)
    points, seed = read.one("points", int, 1, 10**6), read.one("seed", int, 0, LARGEST)
    dimension = math.prod(train.shape)
    references = read_array(content, "params", "references", (len(names), points, dimension), torch.float64)
    rows = node.rows(dict(enumerate(names)))
    found: list[tuple[Tensor, float]] = []
    for place, number in enumerate(numbers):
        cloud = read_client(train.of(rows[place]), number, Sampling(points, seed))
        found.append(Side(cloud.x).midpoints(references[place]))
    reply = config_only(lengths=[length for _, length in found])
    reply["numbers"] = arrays(midpoints=torch.stack([points for points, _ in found]))
    return reply
