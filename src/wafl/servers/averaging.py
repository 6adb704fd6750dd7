"""Average the clients' models: plain, with clipped updates, or with FedDyn's correction.

Clipped: Sun et al., "Can you really backdoor federated learning?" (2019). Dynamic: Acar et al., "Federated learning
based on dynamic regularization" (ICLR 2021).
"""

from abc import abstractmethod
from dataclasses import field
from typing import Annotated

import torch
from torch import Tensor

from wafl.base.options import Positive, frozen, maker
from wafl.parts.lengths import lengths_of, longest_of, shortened
from wafl.parts.messages import Vectors
from wafl.parts.server import Optimizer, Server, Update
from wafl.servers.optimizers import SGD

Stepping = Annotated[
    Optimizer,
    "The step from the server's model toward the aggregate (wafl.servers); by default a full step.",
]


@frozen
class Aggregating(Server):
    """A server that passes one model, its aggregate of the clients' models, to an optimizer."""

    optimizer: Stepping = field(default_factory=SGD, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]

    @abstractmethod
    def aggregate(self, update: Update) -> Tensor:
        """Return one model ``[P]`` from the clients' models."""

    def at_rate(self, rate: float) -> Server | None:
        """Return this server with a learning rate, or None if it has an optimizer already."""
        return self.changed(optimizer=SGD(rate)) if self.optimizer == SGD() else None

    def initial_memory(self, params: Tensor) -> Vectors:
        """Return the optimizer's memory before the first round."""
        return self.optimizer.initial_memory(params)

    def step(self, update: Update, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Return the model after the optimizer's step toward the aggregate, and the optimizer's memory."""
        return self.optimizer.apply(update.start, self.aggregate(update), memory)


@frozen
class Averaging(Aggregating):
    """The weighted mean of the clients' models, followed by an optimizer's step."""

    optimizer: Stepping = field(default_factory=SGD)

    @property
    def averages(self) -> bool:
        """Whether the server uses only the mean of the models; False for derived classes, which may use each model."""
        return type(self) is Averaging

    def aggregate(self, update: Update) -> Tensor:
        """Return the weighted mean of the clients' models."""
        return update.mean()


@frozen
class Clipped(Aggregating):
    """The mean, weighted by lambda, of the clients' models, with long updates shortened.

    An update longer than ``multiple`` times the median length is shortened to this length. The median ignores weights:
    every client in the round has one vote, and of two lengths the median is the shorter. If no update exceeds the
    limit, the result is the same as with :class:`Averaging`, bit for bit.
    """

    multiple: Annotated[float, Positive(), "The maximum length of an update, in multiples of the median length."] = 1.0

    def aggregate(self, update: Update) -> Tensor:
        """Return the weighted mean of the models with shortened updates."""
        lengths = lengths_of(update.start, update.params)
        longest = lengths.new_tensor(longest_of(lengths, self.multiple)).expand_as(lengths)
        return update.mean(shortened(update.start, update.params, lengths, longest))


@frozen
class Dynamic(Server):
    """``h <- h - s (mean - start)`` and ``params <- mean - h``, where ``s`` is the weight of the round's clients.

    The weights of all clients sum to 1. If they are equal, ``s`` is the number of the round's clients over the number
    of all clients. The paper's h is alpha times this one. Use it with :class:`wafl.local.Dynamic`, as FedDyn does.
    """

    @property
    def averages(self) -> bool:
        """True, since the server uses only the mean of the models."""
        return True

    def initial_memory(self, params: Tensor) -> Vectors:
        """Return h before the first round, zeros."""
        return {"h": torch.zeros_like(params)}

    def step(self, update: Update, memory: Vectors) -> tuple[Tensor, Vectors]:
        """Return the next model and h."""
        mean = update.mean()
        h = memory["h"] - float(update.shares.sum()) * (mean - update.start)
        return mean - h, {"h": h}


averaging = maker(Averaging)
clipped = maker(Clipped)
dynamic = maker(Dynamic)
