"""Define local steps, which turn a gradient into a client's step, one file per family.

A new local step is a class in one of the files and a line in the lists below.
"""

from wafl.local.control import (
    Consensus,
    ControlVariates,
    GradientControl,
    consensus,
    control_variates,
    gradient_control,
)
from wafl.local.descent import SAM, SGD, Dynamic, Prox, dynamic, prox, sam, sgd
from wafl.parts.local_step import LocalState, LocalStep, Outcome

__all__ = [
    "SAM", "SGD", "Consensus", "ControlVariates", "Dynamic", "GradientControl", "LocalState", "LocalStep", "Outcome",
    "Prox", "consensus", "control_variates", "dynamic", "gradient_control", "prox", "sam", "sgd",
]  # fmt: skip

LOCAL_STEPS = {
    "sgd": SGD, "prox": Prox, "control_variates": ControlVariates, "gradient_control": GradientControl, "sam": SAM,
    "consensus": Consensus,
}  # fmt: skip
"""The local steps that an experiment file can name."""
