"""The weighted mean of the clients' models, and the base class of servers that replace the mean."""

from abc import abstractmethod
from dataclasses import field
from typing import Annotated

from torch import Tensor

from wafl.base.options import frozen, maker
from wafl.parts.messages import Vectors
from wafl.parts.server import Optimizer, Server
from wafl.parts.update import Update
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


averaging = maker(Averaging)
