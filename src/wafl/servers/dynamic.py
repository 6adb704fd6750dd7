"""FedDyn's server; its clients take the steps in :mod:`wafl.local.dynamic`, which names the paper."""

import torch
from torch import Tensor

from wafl.base.options import frozen, maker
from wafl.parts.messages import Vectors
from wafl.parts.server import Server
from wafl.parts.update import Update


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


dynamic = maker(Dynamic)
