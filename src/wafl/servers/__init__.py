"""Define servers and their optimizers, which turn the clients' models into the next model; one file per family.

A new one is a class in one of the files and a line in the lists below.
"""

from wafl.parts.server import Optimizer, Server, Update
from wafl.servers.averaging import Aggregating, Averaging, Clipped, Dynamic, averaging, clipped, dynamic
from wafl.servers.krum import Bulyan, Krum, MultiKrum, bulyan, krum, multi_krum
from wafl.servers.medians import GeometricMedian, Median, TrimmedMean, geometric_median, median, trimmed_mean
from wafl.servers.optimizers import SGD, Adam, Momentum, Yogi, adam, momentum, sgd, yogi
from wafl.servers.rescaled import Extrapolated, Masked, Normalized, extrapolated, masked, normalized

__all__ = [
    "SGD", "Adam", "Aggregating", "Averaging", "Bulyan", "Clipped", "Dynamic", "Extrapolated", "GeometricMedian",
    "Krum", "Masked", "Median", "Momentum", "MultiKrum", "Normalized", "Optimizer", "Server", "TrimmedMean", "Update",
    "Yogi", "adam", "averaging", "bulyan", "clipped", "dynamic", "extrapolated", "geometric_median", "krum", "masked",
    "median", "momentum", "multi_krum", "normalized", "sgd", "trimmed_mean", "yogi",
]  # fmt: skip

OPTIMIZERS = {"sgd": SGD, "momentum": Momentum, "adam": Adam, "yogi": Yogi}
"""The server optimizers that an experiment file can name; each steps toward the clients' mean."""
AGGREGATES = {
    "clipped": Clipped, "median": Median, "trimmed_mean": TrimmedMean, "krum": Krum, "multi_krum": MultiKrum,
    "geometric_median": GeometricMedian, "bulyan": Bulyan, "masked": Masked, "normalized": Normalized,
    "extrapolated": Extrapolated,
}  # fmt: skip
"""The servers that an experiment file can name and that replace the mean; each may have an optimizer."""
