"""Servers and their optimizers (:mod:`wafl.servers`): what becomes of the clients' models, one file each."""

from wafl.algorithms.parts import Optimizer, Server
from wafl.algorithms.servers.adam import Adam, adam
from wafl.algorithms.servers.aggregating import Aggregating
from wafl.algorithms.servers.averaging import Averaging, averaging
from wafl.algorithms.servers.clipped import Clipped, clipped
from wafl.algorithms.servers.geometric_median import GeometricMedian, geometric_median
from wafl.algorithms.servers.krum import Krum, MultiKrum, krum, multi_krum
from wafl.algorithms.servers.masked import Masked, masked
from wafl.algorithms.servers.median import Median, median
from wafl.algorithms.servers.momentum import Momentum, momentum
from wafl.algorithms.servers.sgd import SGD, sgd
from wafl.algorithms.servers.trimmed_mean import TrimmedMean, trimmed_mean
from wafl.algorithms.servers.yogi import Yogi, yogi

__all__ = [
    "SGD", "Adam", "Aggregating", "Averaging", "Clipped", "GeometricMedian", "Krum", "Masked", "Median", "Momentum",
    "MultiKrum", "Optimizer", "Server", "TrimmedMean", "Yogi", "adam", "averaging", "clipped", "geometric_median",
    "krum", "masked", "median", "momentum", "multi_krum", "sgd", "trimmed_mean", "yogi",
]  # fmt: skip

OPTIMIZERS = {"sgd": SGD, "momentum": Momentum, "adam": Adam, "yogi": Yogi}
"""Optimizers of the server that an experiment file can name; as a server, each is given the clients' mean."""

AGGREGATES = {
    "clipped": Clipped, "median": Median, "trimmed_mean": TrimmedMean, "krum": Krum, "multi_krum": MultiKrum,
    "geometric_median": GeometricMedian, "masked": Masked,
}  # fmt: skip
"""Robust servers that an experiment file can name; each may have one of the optimizers."""
