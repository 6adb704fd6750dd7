"""Local steps: what clients do with a gradient, one file each.

A new one is a file here and a line in the list below.
"""

from wafl.local.control_variates import ControlVariates, control_variates
from wafl.local.gradient_control import GradientControl, gradient_control
from wafl.local.prox import Prox, prox
from wafl.local.sgd import SGD, sgd
from wafl.parts.local_step import LocalState, LocalStep, Outcome

__all__ = [
    "SGD", "ControlVariates", "GradientControl", "LocalState", "LocalStep", "Outcome", "Prox", "control_variates",
    "gradient_control", "prox", "sgd",
]  # fmt: skip

LOCAL_STEPS = {"sgd": SGD, "prox": Prox, "control_variates": ControlVariates, "gradient_control": GradientControl}
"""Local steps that an experiment file can name."""
