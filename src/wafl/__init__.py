"""Wasserstein-robust federated learning: the public names."""

import importlib
from typing import Any

from wafl import adversaries, callbacks, models, shifts, theory, weights
from wafl.adversaries.surrogate import RobustLoss, robust_loss
from wafl.attacks import FGSM, PGD, WassersteinShift
from wafl.core.errors import ConcavityWarning, DivergedError, PreconditionError, RadiusWarning, UnboundedError
from wafl.data import Dataset, Domains, domains, load_dataset
from wafl.data.federation import Federation
from wafl.engine.fit import fit, sweep
from wafl.evaluation.compare import Comparison, compare
from wafl.evaluation.evaluate import Score, evaluate
from wafl.methods import AFL, DRFA, METHODS, WAFL, FedAvg, FedFGSM, FedPGM, FedRobust, Method
from wafl.run import Run, load_run
from wafl.theory.calibration import calibrate
from wafl.theory.certificates import certify

__version__ = "0.1.0"

__all__ = [
    "AFL", "DRFA", "FGSM", "METHODS", "PGD", "WAFL", "Comparison", "ConcavityWarning", "Dataset", "DivergedError",
    "Domains", "FedAvg", "FedFGSM", "FedPGM", "FedRobust", "Federation", "Method", "PreconditionError",
    "RadiusWarning", "RobustLoss", "Run", "Score", "UnboundedError", "WassersteinShift", "__version__",
    "adversaries", "calibrate", "callbacks", "certify", "compare", "domains", "evaluate", "fit", "load_dataset",
    "load_run", "models", "robust_loss", "shifts", "sweep", "theory", "weights",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "flower":  # which needs an optional package
        return importlib.import_module("wafl.flower")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
