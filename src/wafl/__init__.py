"""Wasserstein-robust federated learning: the public names."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from wafl import adversaries, callbacks, local, models, servers, shifts, theory, weights
from wafl.adversaries.surrogate import RobustLoss, robust_loss
from wafl.algorithms.admission import Tolerance
from wafl.attacks import FGSM, PGD, WassersteinShift
from wafl.core.errors import (
    ConcavityWarning,
    DivergedError,
    PreconditionError,
    RadiusWarning,
    SequentialWarning,
    UnboundedError,
)
from wafl.data import Dataset, Domains, domains, load_dataset
from wafl.data.federation import Federation
from wafl.engine.faults import Faults
from wafl.engine.fit import fit, sweep
from wafl.evaluation.compare import Comparison, compare
from wafl.evaluation.evaluate import Score, evaluate
from wafl.methods import (
    AFL,
    DRFA,
    METHODS,
    SCAFFOLD,
    WAFL,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedFGSM,
    FedPGM,
    FedProx,
    FedRobust,
    FedYogi,
    Method,
)
from wafl.run import Run, load_run
from wafl.theory.calibration import calibrate
from wafl.theory.certificates import certify
from wafl.tuning.result import Tuning
from wafl.tuning.tune import tune

if _TYPE_CHECKING:
    from wafl import flower

__version__ = "0.1.0"

__all__ = [
    "AFL", "DRFA", "FGSM", "METHODS", "PGD", "SCAFFOLD", "WAFL", "Comparison", "ConcavityWarning", "Dataset",
    "DivergedError", "Domains", "Faults", "FedAdam", "FedAvg", "FedAvgM", "FedFGSM", "FedPGM", "FedProx", "FedRobust",
    "FedYogi", "Federation", "Method", "PreconditionError", "RadiusWarning", "RobustLoss", "Run", "Score",
    "SequentialWarning", "Tolerance", "Tuning", "UnboundedError", "WassersteinShift", "__version__", "adversaries",
    "calibrate", "callbacks", "certify", "compare", "domains", "evaluate", "fit", "flower", "load_dataset", "load_run",
    "local", "models", "robust_loss", "servers", "shifts", "sweep", "theory", "tune", "weights",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "flower":  # needs an optional package
        import importlib

        return importlib.import_module("wafl.flower")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
