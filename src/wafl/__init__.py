"""Wasserstein-robust federated learning: the public names.

Each is imported when it is first used, so that `wafl --help` need not load torch.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from wafl import adversaries, callbacks, flower, local, models, servers, shifts, theory, weights
    from wafl.adversaries.surrogate import RobustLoss, robust_loss
    from wafl.algorithms.admission import Tolerance
    from wafl.algorithms.caps import Caps
    from wafl.attacks import FGSM, PGD, WassersteinShift
    from wafl.core.errors import (
        ConcavityWarning,
        DivergedError,
        DivergenceWarning,
        LabelCostWarning,
        PreconditionError,
        RadiusWarning,
        SequentialWarning,
        UnboundedError,
    )
    from wafl.core.losses import OutputLoss
    from wafl.data import Dataset, Domains, domains, load_dataset
    from wafl.data.federation import Federation
    from wafl.engine.faults import Faults
    from wafl.engine.fit import fit, sweep
    from wafl.evaluation.compare import Comparison, compare
    from wafl.evaluation.evaluate import Score, evaluate
    from wafl.methods import (
        AFL,
        DRFA,
        FGDRO,
        IRM,
        METHODS,
        QFFL,
        SCAFFOLD,
        SFAT,
        TERM,
        TRADES,
        WAFL,
        CalFAT,
        CVaR,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedFGSM,
        FedGMA,
        FedPGM,
        FedProx,
        FedRobust,
        FedSR,
        FedYogi,
        GroupDRO,
        Method,
        ResilientWAFL,
        REx,
        ScaffPD,
        SinkhornDRO,
    )
    from wafl.run import Run, Runs, load_run
    from wafl.runs.report import write_report
    from wafl.theory.audit import Audit, audit
    from wafl.theory.calibration import calibrate
    from wafl.theory.certificates import certify
    from wafl.theory.next_client import NextClient, next_client
    from wafl.theory.promise import Promise, issue
    from wafl.theory.verify import Verification, verify
    from wafl.tuning.result import Tuning
    from wafl.tuning.tune import tune

__version__ = "0.1.0"

__all__ = [
    "AFL", "DRFA", "FGDRO", "FGSM", "IRM", "METHODS", "PGD", "QFFL", "SCAFFOLD", "SFAT", "TERM", "TRADES", "WAFL",
    "Audit", "CVaR", "CalFAT", "Caps", "Comparison", "ConcavityWarning", "Dataset", "DivergedError",
    "DivergenceWarning", "Domains", "Faults", "FedAdam", "FedAvg", "FedAvgM", "FedFGSM", "FedGMA", "FedPGM", "FedProx",
    "FedRobust", "FedSR", "FedYogi", "Federation", "GroupDRO", "LabelCostWarning", "Method", "NextClient", "OutputLoss",
    "PreconditionError", "Promise", "REx", "RadiusWarning", "ResilientWAFL", "RobustLoss", "Run", "Runs", "ScaffPD",
    "Score", "SequentialWarning", "SinkhornDRO", "Tolerance", "Tuning", "UnboundedError", "Verification",
    "WassersteinShift", "__version__", "adversaries", "audit", "calibrate", "callbacks", "certify", "compare",
    "domains", "evaluate", "fit", "flower", "issue", "load_dataset", "load_run", "local", "models", "next_client",
    "robust_loss", "servers", "shifts", "sweep", "theory", "tune", "verify", "weights", "write_report",
]  # fmt: skip

_HOMES = {
    "wafl.adversaries.surrogate": ("RobustLoss", "robust_loss"),
    "wafl.algorithms.admission": ("Tolerance",),
    "wafl.algorithms.caps": ("Caps",),
    "wafl.attacks": ("FGSM", "PGD", "WassersteinShift"),
    "wafl.core.errors": (
        "ConcavityWarning",
        "DivergedError", "DivergenceWarning",
        "LabelCostWarning",
        "PreconditionError",
        "RadiusWarning",
        "SequentialWarning",
        "UnboundedError",
    ),
    "wafl.core.losses": ("OutputLoss",),
    "wafl.data": ("Dataset", "Domains", "domains", "load_dataset"),
    "wafl.data.federation": ("Federation",),
    "wafl.engine.faults": ("Faults",),
    "wafl.engine.fit": ("fit", "sweep"),
    "wafl.evaluation.compare": ("Comparison", "compare"),
    "wafl.evaluation.evaluate": ("Score", "evaluate"),
    "wafl.methods": (
        "AFL", "DRFA", "FGDRO", "METHODS", "QFFL", "SCAFFOLD", "IRM", "TRADES", "CalFAT", "TERM", "WAFL", "CVaR",
        "FedAdam", "FedAvg", "FedAvgM", "FedFGSM", "FedPGM", "FedProx", "FedRobust", "FedYogi", "Method", "ScaffPD",
        "SinkhornDRO", "ResilientWAFL", "SFAT", "GroupDRO", "REx", "FedSR", "FedGMA",
    ),
    "wafl.run": ("Run", "Runs", "load_run"),
    "wafl.runs.report": ("write_report",),
    "wafl.theory.audit": ("Audit", "audit"),
    "wafl.theory.calibration": ("calibrate",),
    "wafl.theory.certificates": ("certify",),
    "wafl.theory.next_client": ("NextClient", "next_client"),
    "wafl.theory.promise": ("Promise", "issue"),
    "wafl.theory.verify": ("Verification", "verify"),
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
