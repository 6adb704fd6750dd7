"""Servers that take the mean of the clients' models: plain, of clipped updates, or FedDyn's.

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
    "The step from the aggregate to the next model (wafl.servers); by default the aggregate is the next model.",
]


@frozen
class Aggregating(Server):
    """A server that hands one model, its aggregate of the clients' models, to an optimizer."""

    optimizer: Stepping = field(default_factory=SGD, kw_only=True)  # pyright: ignore[reportIncompatibleVariableOverride]

    @abstractmethod
    def aggregate(self, update: Update) -> Tensor:
        """Return one model ``[P]`` from the clients' models."""

    def at_rate(self, rate: float) -> Server | None:
        return self.changed(optimizer=SGD(rate)) if self.optimizer == SGD() else None

    def initial_memory(self, params: Tensor) -> Vectors:
        return self.optimizer.initial_memory(params)

    def step(self, update: Update, memory: Vectors) -> tuple[Tensor, Vectors]:
        return self.optimizer.apply(update.start, self.aggregate(update), memory)


@frozen
class Averaging(Aggregating):
    """The weighted mean of the clients' models, handed to an optimizer."""

    optimizer: Stepping = field(default_factory=SGD)

    @property
    def averages(self) -> bool:
        return type(self) is Averaging  # one that derives from it may look at each model

    def aggregate(self, update: Update) -> Tensor:
        return update.mean()


@frozen
class Clipped(Aggregating):
    """The mean, weighted by lambda, of the models with updates of at most ``multiple`` times the median length.

    The median knows no weights: every client of the round has one vote, and of two updates the longer is compared with
    the shorter. If no update is that long, the result is that of :class:`Averaging`, bit for bit.
    """

    multiple: Annotated[
        float, Positive(), "How many times the median length an update may have; a longer one is shortened."
    ] = 1.0

    def aggregate(self, update: Update) -> Tensor:
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
        return True

    def initial_memory(self, params: Tensor) -> Vectors:
        return {"h": torch.zeros_like(params)}

    def step(self, update: Update, memory: Vectors) -> tuple[Tensor, Vectors]:
        mean = update.mean()
        h = memory["h"] - float(update.shares.sum()) * (mean - update.start)
        return mean - h, {"h": h}


averaging = maker(Averaging)
clipped = maker(Clipped)
dynamic = maker(Dynamic)
