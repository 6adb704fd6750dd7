"""Answer queries about examples without a model: cuts, class means and spreads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor

from wafl.base.describe import some
from wafl.base.fingerprint import tensors_digest
from wafl.flower.node.work import Node
from wafl.flower.wire.values import LARGEST, Reader, WireError, config_only, read_doubles, short, with_arrays
from wafl.objectives.ball.client_cost_matrix import ClassMeans, class_means
from wafl.train.class_means import class_means_at
from wafl.train.clients import squares_around_mean
from wafl.weights.transport import exchange
from wafl.weights.transport.clouds import Sampling, read_client

POINTS, FEWEST_POINTS = 1000, 50
"""The maximum and minimum number of a client's examples in a mixture.

The maximum is the default of :func:`wafl.weights.mixture`.
"""


@dataclass(frozen=True)
class CutsQuery:
    """A query for each client's cut: the distribution of at most ``points`` examples over the target, for potentials g.

    ``numbers`` are the clients' indices among all clients; they and the seed determine the drawn examples.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    target: Tensor
    g: Tensor
    points: int
    seed: int

    def encode(self) -> RecordDict:
        """Return the message."""
        drawn = {"names": self.names, "numbers": self.numbers, "points": self.points, "seed": self.seed}
        content = config_only("query", **drawn, count=len(self.g))
        return with_arrays(content, "params", target=self.target, g=self.g)

    def read(self, reply: RecordDict) -> tuple[Tensor, Tensor]:
        """Return each client's mean and shares; raise WireError for invalid shares."""
        clients = len(self.names)
        means = read_doubles(reply, "numbers", "means", (clients,))
        shares = read_doubles(reply, "numbers", "shares", (clients, len(self.g)))
        if bool((shares < 0).any()) or not torch.allclose(shares.sum(1), torch.ones_like(means)):
            raise WireError("shares must be at least 0 and sum to 1 for each client")
        return means, shares


def _check_size(node: Node, names: Sequence[str], least: int) -> None:
    """Raise WireError if a client has fewer training examples."""
    sizes = node.site.federation.train.num_examples[node.rows(names)].tolist()
    few = [name for name, size in zip(names, sizes, strict=True) if size < least]
    if few:
        raise WireError(f"{some(few)} have fewer than {least} training examples, which a cut needs")


def cuts(node: Node, content: RecordDict) -> RecordDict:
    """Reply with each client's cut: the mean of its potential, and the distribution of its examples over the target."""
    read = Reader(content, "query")
    count, names = read.one("count", int, 1, exchange.MOST_POINTS), read.different("names")
    numbers = read.many("numbers", int, len(names), 0, LARGEST)
    clients, seed = node.site.federation, node.experiment.seeds[0]
    target = read_doubles(content, "params", "target", (count, math.prod(clients.input_shape)))
    g = read_doubles(content, "params", "g", (count,))
    sampling = Sampling(read.one("points", int, POINTS, POINTS), read.one("seed", int, seed, seed))
    if node.site.own:
        _check_size(node, names, FEWEST_POINTS)
    rows = node.asked(names)
    drawn = [read_client(clients.train.of(row), number, sampling).x for row, number in zip(rows, numbers, strict=True)]
    means, shares = exchange.cuts(drawn, target, g)
    return with_arrays(config_only("reply"), "numbers", means=means, shares=shares)


@dataclass(frozen=True)
class MeansQuery:
    """A query for two means of each class of these clients; ``numbers`` are their indices among all clients.

    The server computes the ball's cost matrix from these means, and sends the matrix with every query of the method.
    With a ``layer``, the means are those outputs' at the parameters with which the experiment starts. ``start`` is the
    digest of these parameters: a node takes them from the app, and never from the server.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    num_outputs: int
    features: int
    layer: str | None = None
    start: str | None = None

    def encode(self) -> RecordDict:
        """Return the message."""
        outputs = None if self.layer is None else self.num_outputs
        return config_only("query", names=self.names, outputs=outputs, layer=self.layer, start=self.start)

    def read(self, reply: RecordDict) -> ClassMeans:
        """Return the class means of a reply."""
        read, count = Reader(reply, "reply"), len(self.names)
        labels = read.many("labels", int, None, 0, self.num_outputs - 1)
        owners = read.many("places", int, len(labels), 0, count - 1)
        counts = read.many("counts", int, len(labels), 2, 10**12)
        if len(set(zip(labels, owners, strict=True))) != len(labels):
            raise WireError("means must be of different classes of each client")
        means = read_doubles(reply, "numbers", "means", (len(labels), 2, self.features))
        clients = [self.numbers[owner] for owner in owners]
        return ClassMeans(_integers(labels), _integers(clients), means, _integers(counts))


def _integers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def means(node: Node, content: RecordDict) -> RecordDict:
    """Reply with the class means of the node's clients, if a method of its experiment needs them.

    A class with fewer examples than an update needs is left out.
    """
    read = Reader(content, "query")
    names, layer = read.different("names"), read.one("layer", str) if read.has("layer") else None
    if not any(spec.asks_cost_matrix and spec.layer == layer for specs in node.specs.values() for spec in specs):
        where = "" if layer is None else f", space={short(layer)}"
        raise WireError(f"no method of the experiment has cost_matrix='clients'{where}, so class means are not sent")
    least = node.limits.min_examples if node.site.own else 2
    if layer is None:
        train = node.site.federation.train.of_clients(node.asked(names))
        owners = torch.repeat_interleave(torch.arange(len(names)), train.num_examples)
        result = class_means(train.x, train.y, owners, least)
    else:
        task, start = node.task(read.one("outputs", int, 1, LARGEST))
        if read.one("start", str) != tensors_digest([start]):
            raise WireError(
                "the experiment's model starts with other numbers here than at the server: use the same "
                "versions of torch and of the app"
            )
        result = class_means_at(layer, task, start, node.site.federation.train.of_clients(node.asked(names)), least)
    about = {"labels": result.labels, "places": result.clients, "counts": result.counts}
    plain = {name: numbers.tolist() for name, numbers in about.items()}
    return with_arrays(config_only("reply", **plain), "numbers", means=result.means)


@dataclass(frozen=True)
class SpreadQuery:
    """A query for the sum of the squared distances of each client's examples from their mean, for ``radius="auto"``."""

    names: tuple[str, ...]

    def encode(self) -> RecordDict:
        """Return the message."""
        return config_only("query", names=self.names)

    def read(self, reply: RecordDict) -> list[tuple[float, int]]:
        """Return each client's sum and number of examples."""
        count = len(self.names)
        sizes = Reader(reply, "reply").many("sizes", int, count, 0, LARGEST)
        squares = read_doubles(reply, "numbers", "squares", (count,))
        if bool((squares < 0).any()):
            raise WireError("sums of squares must be at least 0")
        return list(zip(squares.tolist(), sizes, strict=True))


def spread(node: Node, content: RecordDict) -> RecordDict:
    """Reply with the sums of the node's clients, if a method of its experiment chooses its radius."""
    names, train = Reader(content, "query").different("names"), node.site.federation.train
    if not node.chooses:
        raise WireError("no method of the experiment has radius='auto', so the spread of examples is not sent")
    rows = node.asked(names)
    reply = config_only("reply", sizes=train.num_examples[rows].tolist())
    squares = [squares_around_mean(train.of(row)[0]) for row in rows]
    return with_arrays(reply, "numbers", squares=torch.tensor(squares, dtype=torch.float64))
