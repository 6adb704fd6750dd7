"""The public door to :mod:`wafl.algorithms.servers`: what becomes of the clients' models."""

from wafl.algorithms.servers import (
    SGD,
    Adam,
    Aggregating,
    Averaging,
    Clipped,
    GeometricMedian,
    Krum,
    Masked,
    Median,
    Momentum,
    MultiKrum,
    Optimizer,
    Server,
    TrimmedMean,
    Yogi,
    adam,
    averaging,
    clipped,
    geometric_median,
    krum,
    masked,
    median,
    momentum,
    multi_krum,
    sgd,
    trimmed_mean,
    yogi,
)

__all__ = [
    "SGD", "Adam", "Aggregating", "Averaging", "Clipped", "GeometricMedian", "Krum", "Masked", "Median", "Momentum",
    "MultiKrum", "Optimizer", "Server", "TrimmedMean", "Yogi", "adam", "averaging", "clipped", "geometric_median",
    "krum", "masked", "median", "momentum", "multi_krum", "sgd", "trimmed_mean", "yogi",
]  # fmt: skip
