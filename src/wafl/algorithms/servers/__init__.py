"""Servers and their optimizers (:mod:`wafl.servers`): what becomes of the clients' models, one file each."""

from wafl.algorithms.parts import Optimizer, Server
from wafl.algorithms.servers.adam import Adam, adam
from wafl.algorithms.servers.averaging import Averaging, averaging
from wafl.algorithms.servers.momentum import Momentum, momentum
from wafl.algorithms.servers.sgd import SGD, sgd
from wafl.algorithms.servers.yogi import Yogi, yogi

__all__ = [
    "SGD", "Adam", "Averaging", "Momentum", "Optimizer", "Server", "Yogi", "adam", "averaging", "momentum",
    "sgd", "yogi",
]  # fmt: skip

OPTIMIZERS = {"sgd": SGD, "momentum": Momentum, "adam": Adam, "yogi": Yogi}
"""Optimizers of the server that an experiment file can name."""
