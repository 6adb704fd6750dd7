"""The shape of clients that are on nodes: once before training, each sends the means of its classes and their sizes.

The server makes a shape of these and sends it with every query of the method, because a node keeps none.
"""

import math
from dataclasses import dataclass

import torch
from flwr.app import RecordDict

from wafl.flower.node.work import Node
from wafl.flower.wire.values import Reader, WireError, config_only, finite, read_array, with_arrays
from wafl.objectives.ball.client_shape import ClassMeans, class_means
from wafl.objectives.ball.shape import Shape
from wafl.train.spec import Spec


@dataclass(frozen=True)
class MeansQuery:
    """A query for the mean of each class of these clients; ``numbers`` are their places among all clients."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    num_outputs: int
    features: int

    def encode(self) -> RecordDict:
        return config_only("query", names=self.names)

    def read(self, reply: RecordDict) -> ClassMeans:
        read, count = Reader(reply, "reply"), len(self.names)
        labels = read.many("labels", int, None, 0, self.num_outputs - 1)
        places = read.many("places", int, len(labels), 0, count - 1)
        counts = read.many("counts", int, len(labels), 1, 10**12)
        if set(places) != set(range(count)) or len(set(zip(labels, places, strict=True))) != len(labels):
            raise WireError("means must be of one or more different classes of each client")
        means = finite("means", read_array(reply, "numbers", "means", (len(labels), self.features), torch.float64))
        clients = torch.tensor([self.numbers[place] for place in places])
        return ClassMeans(torch.tensor(labels), clients, means, torch.tensor(counts))


def means(node: Node, content: RecordDict) -> RecordDict:
    """The class means of a node's clients, which it tells only if a method of its experiment needs them."""
    names, train = Reader(content, "query").different("names"), node.site.federation.train
    if not any(spec.asks_shape for spec in node.specs()):
        raise WireError("no method of the experiment has shape='clients': the means of classes are not for sending")
    rows = node.rows(dict(enumerate(names)))
    parts = [train.of(row) for row in rows.values()]
    owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(y) for _, y in parts]))
    found = class_means(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), owner)
    about = {"labels": found.labels, "places": found.clients, "counts": found.counts}
    reply = config_only("reply", **{name: numbers.tolist() for name, numbers in about.items()})
    return with_arrays(reply, "numbers", means=found.means)


def with_shape(spec: Spec, node: Node, content: RecordDict) -> Spec:
    """A node's run with the shape that came with the query, if the run needs one."""
    if not spec.asks_shape:
        return spec
    features = math.prod(node.site.federation.input_shape)
    matrix = finite("shape", read_array(content, "shape", "matrix", (features, features), torch.float64))
    try:
        return spec.shaped(Shape(matrix))
    except ValueError as error:
        raise WireError(str(error)) from error
