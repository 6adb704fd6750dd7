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
    "The step from the aggregate to the next model (wafl.servers); by default the aggregate is the next model.",
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
        """Return the next model, by the optimizer's step to the aggregate."""
        return self.optimizer.apply(update.start, self.aggregate(update), memory)


@frozen
class Averaging(Aggregating):
    """The weighted mean of the clients' models, followed by an optimizer's step."""

    optimizer: Stepping = field(default_factory=SGD)

    @property
    def averages(self) -> bool:
        """Whether the server uses only the mean of the models; a derived class may use each model."""
        return type(self) is Averaging  # one that derives from it may look at each model

    def aggregate(self, update: Update) -> Tensor:
        """Return the weighted mean of the clients' models."""
        return update.mean()


@frozen
class Clipped(Aggregating):
    """The mean, weighted by lambda, of the models with updates of at most ``multiple`` times the median length.

    The median ignores weights: every client of the round has one vote, and of two updates the longer is compared with
    the shorter. If no update exceeds the limit, the result is the same as with :class:`Averaging`, bit for bit.
    """

    multiple: Annotated[
        float, Positive(), "How many times the median length an update may have; a longer one is shortened."
    ] = 1.0

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
