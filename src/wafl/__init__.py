"""Wasserstein-robust federated learning: the public names."""

from wafl import adversaries, models, shifts, weights
from wafl.attacks import FGSM, PGD, WassersteinShift
from wafl.compare import Comparison, compare
from wafl.data import Dataset, Domains, domains, load_dataset
from wafl.engine.fit import fit, sweep
from wafl.errors import ConcavityWarning, DivergedError, RadiusWarning, UnboundedError
from wafl.evaluate import Score, evaluate
from wafl.federation import Federation
from wafl.methods import AFL, DRFA, METHODS, WAFL, FedAvg, FedFGSM, FedPGM, FedRobust, Method
from wafl.run import Run, load_run
from wafl.surrogate import RobustLoss, robust_loss

__version__ = "0.1.0"

__all__ = [
    "AFL", "DRFA", "FGSM", "METHODS", "PGD", "WAFL", "Comparison", "ConcavityWarning", "Dataset", "DivergedError",
    "Domains", "FedAvg", "FedFGSM", "FedPGM", "FedRobust", "Federation", "Method", "RadiusWarning", "RobustLoss", "Run",
    "Score", "UnboundedError", "WassersteinShift", "__version__", "adversaries", "compare", "domains", "evaluate",
    "fit", "load_dataset", "load_run", "models", "robust_loss", "shifts", "sweep", "weights",
]  # fmt: skip
