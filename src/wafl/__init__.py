"""Wasserstein-robust federated learning: the public names.

Each is imported when it is first used, so that `wafl --help` need not load torch.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from wafl import adversaries, callbacks, flower, local, models, servers, shifts, theory, weights
    from wafl.adversaries.surrogate import RobustLoss, robust_loss
    from wafl.algorithms.admission import Tolerance
    from wafl.attacks import FGSM, PGD, WassersteinShift
    from wafl.core.errors import (
        ConcavityWarning,
        DivergedError,
        LabelCostWarning,
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
    from wafl.run import Run, Runs, load_run
    from wafl.theory.calibration import calibrate
    from wafl.theory.certificates import certify
    from wafl.tuning.result import Tuning
    from wafl.tuning.tune import tune

__version__ = "0.1.0"

__all__ = [
    "AFL", "DRFA", "FGSM", "METHODS", "PGD", "SCAFFOLD", "WAFL", "Comparison", "ConcavityWarning", "Dataset",
    "DivergedError", "Domains", "Faults", "FedAdam", "FedAvg", "FedAvgM", "FedFGSM", "FedPGM", "FedProx", "FedRobust",
    "FedYogi", "Federation", "LabelCostWarning", "Method", "PreconditionError", "RadiusWarning", "RobustLoss", "Run",
    "Runs", "Score", "SequentialWarning", "Tolerance", "Tuning", "UnboundedError", "WassersteinShift", "__version__",
    "adversaries", "calibrate", "callbacks", "certify", "compare", "domains", "evaluate", "fit", "flower",
    "load_dataset", "load_run", "local", "models", "robust_loss", "servers", "shifts", "sweep", "theory",
    "tune", "weights",
]  # fmt: skip

_HOMES = {
    "wafl.adversaries.surrogate": ("RobustLoss", "robust_loss"),
    "wafl.algorithms.admission": ("Tolerance",),
    "wafl.attacks": ("FGSM", "PGD", "WassersteinShift"),
    "wafl.core.errors": (
        "ConcavityWarning",
        "DivergedError",
        "LabelCostWarning",
        "PreconditionError",
        "RadiusWarning",
        "SequentialWarning",
        "UnboundedError",
    ),
    "wafl.data": ("Dataset", "Domains", "domains", "load_dataset"),
    "wafl.data.federation": ("Federation",),
    "wafl.engine.faults": ("Faults",),
    "wafl.engine.fit": ("fit", "sweep"),
    "wafl.evaluation.compare": ("Comparison", "compare"),
    "wafl.evaluation.evaluate": ("Score", "evaluate"),
    "wafl.methods": (
        "AFL", "DRFA", "METHODS", "SCAFFOLD", "WAFL", "FedAdam", "FedAvg", "FedAvgM",
        "FedFGSM", "FedPGM", "FedProx", "FedRobust", "FedYogi", "Method",
    ),
    "wafl.run": ("Run", "Runs", "load_run"),
    "wafl.theory.calibration": ("calibrate",),
    "wafl.theory.certificates": ("certify",),
    "wafl.tuning.result": ("Tuning",),
    "wafl.tuning.tune": ("tune",),
}  # fmt: skip
"""Where each name comes from; those that are not here are modules."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), None)
    found = import_module(f"wafl.{name}") if home is None else getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
