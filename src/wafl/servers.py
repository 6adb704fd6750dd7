"""The public door to :mod:`wafl.algorithms.servers`: what becomes of the clients' models."""

from wafl.algorithms.servers import (
    SGD,
    Adam,
    Averaging,
    Momentum,
    Optimizer,
    Server,
    Yogi,
    adam,
    averaging,
    momentum,
    sgd,
    yogi,
)

__all__ = [
    "SGD", "Adam", "Averaging", "Momentum", "Optimizer", "Server", "Yogi", "adam", "averaging", "momentum", "sgd",
    "yogi",
]  # fmt: skip
