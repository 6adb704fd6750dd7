"""What nodes tell for ``radius="auto"``: once before training, how far each client's examples lie from their mean."""

from dataclasses import dataclass

import torch
from flwr.app import RecordDict

from wafl.flower.node.work import Node
from wafl.flower.wire.values import LARGEST, Reader, WireError, config_only, finite, read_array, with_arrays
from wafl.train.clients import squares_around_mean


@dataclass(frozen=True)
class SpreadQuery:
    """A query for the sum of the squared distances of each client's examples from their mean."""

    names: tuple[str, ...]

    def encode(self) -> RecordDict:
        return config_only("query", names=self.names)

    def read(self, reply: RecordDict) -> list[tuple[float, int]]:
        """The sum and the number of examples of each client."""
        count = len(self.names)
        sizes = Reader(reply, "reply").many("sizes", int, count, 0, LARGEST)
        squares = finite("squares", read_array(reply, "numbers", "squares", (count,), torch.float64))
        if bool((squares < 0).any()):
            raise WireError("sums of squares must be at least 0")
        return list(zip(squares.tolist(), sizes, strict=True))


def spread(node: Node, content: RecordDict) -> RecordDict:
    """The sums of a node's clients, which it tells only if a method of its experiment chooses its radius."""
    names, train = Reader(content, "query").different("names"), node.site.federation.train
    if not node.chooses:
        raise WireError("no method of the experiment has radius='auto': how examples spread is not for sending")
    rows = list(node.rows(dict(enumerate(names))).values())
    reply = config_only("reply", sizes=[int(train.num_examples[row]) for row in rows])
    squares = [squares_around_mean(train.of(row)[0]) for row in rows]
    return with_arrays(reply, "numbers", squares=torch.tensor(squares, dtype=torch.float64))
