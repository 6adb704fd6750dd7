"""Local steps (:mod:`wafl.local`): what clients do with a gradient, one file each."""

from wafl.algorithms.local.control_variates import ControlVariates, control_variates
from wafl.algorithms.local.gradient_control import GradientControl, gradient_control
from wafl.algorithms.local.prox import Prox, prox
from wafl.algorithms.local.sgd import SGD, sgd
from wafl.algorithms.parts import LocalState, LocalStep, Outcome

__all__ = [
    "SGD", "ControlVariates", "GradientControl", "LocalState", "LocalStep", "Outcome", "Prox", "control_variates",
    "gradient_control", "prox", "sgd",
]  # fmt: skip

LOCAL_STEPS = {"sgd": SGD, "prox": Prox, "control_variates": ControlVariates, "gradient_control": GradientControl}
"""Local steps that an experiment file can name."""
